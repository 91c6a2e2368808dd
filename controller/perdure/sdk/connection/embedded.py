"""The embedded controller of a home folder as its files show it: its record, its process, its token and its stderr.

`controller.json` has the address and the process of the controller, and the file of its token if that is not in the
home. The controller writes it at the end of its start, and removes it when it stops on request.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

from perdure.sdk.connection.endpoint import Endpoint, NoController

RECORD = "controller.json"
STDERR_LOG = "controller.stderr.log"


def running(home: Path) -> Endpoint | None:
    """The embedded controller of `home`, if it answers. Raises `NoController` for a token that cannot be trusted.

    If the recorded process cannot be seen, another program may listen on its port. The token is sent there only if the
    certificate is the recorded one or if the program runs as this user (or root); and it must accept the token.
    """
    # Imported here because http.client is half of the cost of a short command.
    from perdure.sdk.connection.health import is_answering, is_authorized, is_trusted

    record = load_record(home)
    url = str(record.get("endpoint", "")).rstrip("/")
    pin = record.get("fingerprint")
    endpoint = Endpoint(url, "", home=home, pid=_pid(record) or None, fingerprint=pin if isinstance(pin, str) else None)
    if not url or not is_answering(endpoint):
        return None
    is_ours = is_controller(_pid(record))
    is_proven = is_ours or endpoint.fingerprint is not None or is_trusted(url)
    token_file = Path(str(record.get("token_file") or home / "token"))
    if not is_proven or (not is_ours and not token_file.exists()):
        return None
    endpoint = replace(endpoint, token=_own_token(token_file))
    return endpoint if is_ours or is_authorized(endpoint) else None


def recorded_pid(home: Path) -> int | None:
    """The process ID of the embedded controller if it is alive, whether or not it answers."""
    pid = _pid(load_record(home))
    return pid if is_controller(pid) else None


def load_record(home: Path) -> dict[str, object]:
    """The content of `controller.json`; empty if there is none, or no valid one."""
    try:
        record = json.loads((home / RECORD).read_text())
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def is_controller(pid: int, home: Path | None = None) -> bool:
    """Whether process `pid` is a live controller, rather than another process that was given the same number.

    `home`: it must also be the controller of this home, as its command line names it.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    is_zombie = stat.rpartition(")")[2].split()[:1] == ["Z"]
    arguments = command.split(b"\0")
    return not is_zombie and b"perdure.controller" in arguments and (home is None or _is_of_home(arguments, home))


def stderr_tail(home: Path, lines: int = 15, *, since: int = 0) -> str:
    """The last lines that the embedded controller wrote to stderr after byte `since`; empty if it wrote nothing."""
    try:
        with open(home / STDERR_LOG, "rb") as log:
            log.seek(max(since, log.seek(0, os.SEEK_END) - 64 * 1024))
            text = log.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return ""
    return "\n".join(text.splitlines()[-lines:])


def _is_of_home(arguments: list[bytes], home: Path) -> bool:
    for option, value in pairwise(arguments):
        if option == b"--home":
            with contextlib.suppress(OSError):
                return os.path.samefile(value, home)
    return False


def _pid(record: Mapping[str, object]) -> int:
    pid = record.get("pid")
    return pid if isinstance(pid, int) else 0


def _own_token(path: Path) -> str:
    try:
        mode = path.stat().st_mode & 0o777
        token = path.read_text().strip()
    except OSError as error:
        raise NoController(
            f"cannot read the controller's token: {error.strerror}",
            where=str(path),
            fix="for a new one, run: perdure controller stop && perdure controller start",
        ) from error
    if mode & 0o077:
        raise NoController(
            f"others may read the controller's token (mode {mode:04o})", where=str(path), fix=f"run: chmod 600 {path}"
        )
    return token
