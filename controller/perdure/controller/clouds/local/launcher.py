"""Starts the host processes of a launch: all of them, or none."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perdure.controller.clouds.local import layout, locks, starting
from perdure.controller.clouds.local.isolation import host_environment, host_python

START_TIMEOUT_S = 30.0
GIVE_BACK_TIMEOUT_S = 10.0
HOST = "perdure.controller.clouds.local.host"


class HostFailed(Exception):
    """A machine did not start, and nothing of it is left running."""


@dataclass(frozen=True)
class Prepared:
    """An instance's directory, complete, and its lock, held by this process until a host has it."""

    path: Path
    lock: int


def prepare(path: Path, state: dict[str, Any], spec: dict[str, Any]) -> Prepared:
    """Make the directory in one step, so that one that exists is complete. One that was abandoned is made anew."""
    new = Path(tempfile.mkdtemp(prefix=".new-", dir=path.parent))
    (new / layout.ORDERS).mkdir(mode=0o700)
    layout.write_json(str(new / layout.STATE), state)
    layout.write_json(str(new / layout.SPEC), spec)
    lock = locks.hold(str(new / layout.LOCK))
    try:
        new.rename(path)
    except BaseException:
        os.close(lock)
        raise
    return Prepared(path, lock)


def start(machines: Sequence[Prepared]) -> None:
    """Start a host for each, side by side, and wait until every machine runs. Raises HostFailed, or OSError.

    Whatever happens, the locks are the hosts' own afterwards. After an error, some machines may run.
    """
    answers: dict[int, Path] = {}
    hosts: list[subprocess.Popen[bytes]] = []
    try:
        for one in machines:
            answer, say = os.pipe()
            answers[answer] = one.path
            try:
                if (host := _start_host(one, say)) is not None:
                    hosts.append(host)
            finally:
                os.close(say)
        for one in machines:
            os.close(one.lock)
        machines = ()
        _await(answers)
    finally:
        for one in machines:
            os.close(one.lock)
        for answer in answers:
            os.close(answer)
        for host in hosts:
            host.wait()  # it has left a child behind and ended, or failed


def give_back(paths: Sequence[Path]) -> None:
    """End these machines and wait until their hosts have. Raises TimeoutError."""
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            layout.give_order(str(path), layout.TERMINATE, {})
    until = time.monotonic() + GIVE_BACK_TIMEOUT_S
    for path in paths:
        if not locks.wait_until_free(str(path / layout.LOCK), max(0.0, until - time.monotonic())):
            raise TimeoutError(f"{path.name} does not end")


def _start_host(one: Prepared, say: int) -> subprocess.Popen[bytes] | None:
    """None where somebody else started it: in a controller's machine, a host would end with that machine."""
    if asked := os.environ.get(layout.ASK_HOST):
        starting.ask(asked, one.path, one.lock, say)
        return None
    return start_host(one, say)


def start_host(one: Prepared, say: int) -> subprocess.Popen[bytes]:
    """A process that leaves the host behind and ends."""
    with open(one.path / layout.HOST_LOG, "ab") as log:
        return subprocess.Popen(
            [*host_python(), HOST, str(one.path), str(one.lock), str(say)],
            env=host_environment(),
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            pass_fds=(one.lock, say),
            start_new_session=True,
        )


def _await(answers: dict[int, Path]) -> None:
    until = time.monotonic() + START_TIMEOUT_S
    waiting = dict(answers)
    poll = select.poll()
    for answer in waiting:
        poll.register(answer, select.POLLIN)
    while waiting:
        ready = poll.poll(1000 * max(0.0, until - time.monotonic()))
        if not ready:
            silent = next(iter(waiting.values()))
            raise HostFailed(f"no answer within {START_TIMEOUT_S:g} s: see {silent / layout.HOST_LOG}")
        for answer, _ in ready:
            poll.unregister(answer)
            path = waiting.pop(answer)
            text = os.read(answer, 4096).decode(errors="replace")
            if text != "ok":
                raise HostFailed(text or _last_line(path / layout.HOST_LOG))


def _last_line(log: Path) -> str:
    with contextlib.suppress(OSError):
        if lines := log.read_text(errors="replace").strip().splitlines():
            return lines[-1]
    return "its host ended without a word"
