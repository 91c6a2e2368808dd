"""The runtime interface of HAProxy: commands over its admin socket, one connection per command."""

from __future__ import annotations

import csv
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

TIMEOUT_S = 2.0
_CHUNK = 64 * 1024
_DIGITS = "12345"


class CommandFailed(Exception):
    """HAProxy does not answer, or has rejected the command. The text is its answer."""


@dataclass(frozen=True)
class ServerCounts:
    """Of one server, of a whole backend (`server` is BACKEND), or of the endpoint (FRONTEND).

    Requests under way, all so far, those that wait for a server, and the answers so far by their status' first digit.
    """

    backend: str
    server: str
    current: int
    total: int
    queued: int = 0
    answers: Mapping[str, int] = field(default_factory=dict)


def run(admin: Path, command: str) -> str:
    """The answer to a command. Raises CommandFailed."""
    try:
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(TIMEOUT_S)
            link.connect(str(admin))
            link.sendall(command.encode() + b"\n")
            chunks = []
            while chunk := link.recv(_CHUNK):
                chunks.append(chunk)
    except OSError as error:
        raise CommandFailed(f"HAProxy does not answer: {error}") from error
    return b"".join(chunks).decode("utf-8", "replace").strip()


def change(admin: Path, command: str) -> None:
    """A command that answers nothing if it succeeds. Raises CommandFailed."""
    if answer := run(admin, command):
        raise CommandFailed(f"{command}: {answer}")


def expect(admin: Path, command: str, word: str) -> None:
    """A command whose answer has `word` if it succeeds. Raises CommandFailed, without the command: it may be a key."""
    answer = run(admin, command)
    if word not in answer:
        raise CommandFailed(answer[:500] or "no answer")


def counts(admin: Path) -> list[ServerCounts]:
    """The load of all servers and backends, and of the endpoint. Raises CommandFailed."""
    return list(_parse(run(admin, "show stat -1 7 -1")))


def _parse(text: str) -> Iterator[ServerCounts]:
    if not text.startswith("# "):
        raise CommandFailed(f"show stat: {text[:200]}")
    for row in csv.DictReader(text[2:].splitlines()):
        numbers = {name: int(row.get(name) or 0) for name in ("scur", "stot", "qcur")}
        answers = {digit: count for digit in _DIGITS if (count := int(row.get(f"hrsp_{digit}xx") or 0))}
        yield ServerCounts(row["pxname"], row["svname"], numbers["scur"], numbers["stot"], numbers["qcur"], answers)
