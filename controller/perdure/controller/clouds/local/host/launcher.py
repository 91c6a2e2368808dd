"""Starts the host processes of a launch: all of them, or none."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from perdure.controller.clouds.local import layout, locks
from perdure.controller.clouds.local.host import spawner
from perdure.controller.clouds.local.host.host_process import Prepared, start_host

START_TIMEOUT_S = 30.0
TERMINATE_TIMEOUT_S = 10.0


class HostStartError(Exception):
    """A machine did not start, and nothing of it is left running."""


def prepare(path: Path, state: dict[str, Any], spec: dict[str, Any]) -> Prepared:
    """Create the directory atomically, so that an existing one is complete. Replaces an abandoned one."""
    new = Path(tempfile.mkdtemp(prefix=".new-", dir=path.parent))
    (new / layout.COMMANDS).mkdir(mode=0o700)
    layout.write_json(str(new / layout.STATE), state)
    layout.write_json(str(new / layout.SPEC), spec)
    lock = locks.hold(str(new / layout.LOCK))
    try:
        new.rename(path)
    except BaseException:
        os.close(lock)
        raise
    return Prepared(path, lock)


def prepare_again(path: Path, state: dict[str, Any], spec: dict[str, Any]) -> Prepared:
    """Prepare a halted machine for another start with the disk that it has. Until its host runs, it stays halted."""
    lock = locks.hold(str(path / layout.LOCK))
    try:
        layout.remove_all_but_disk(str(path))
        layout.write_json(str(path / layout.SPEC), spec)
        layout.write_json(str(path / layout.STATE), state)
    except BaseException:
        os.close(lock)
        raise
    return Prepared(path, lock)


def start_hosts(machines: Sequence[Prepared]) -> None:
    """Start the hosts in parallel and wait until every machine runs. Raises HostStartError or OSError.

    In any case, this process no longer holds the locks afterwards. After an error, some machines may run.
    """
    ready_pipes: dict[int, Path] = {}
    hosts: list[subprocess.Popen[bytes]] = []
    try:
        for machine in machines:
            ready_read, ready_write = os.pipe()
            ready_pipes[ready_read] = machine.path
            try:
                if (host := _start_host(machine, ready_write)) is not None:
                    hosts.append(host)
            finally:
                os.close(ready_write)
        for machine in machines:
            os.close(machine.lock)
        machines = ()
        _wait_ready(ready_pipes)
    finally:
        for machine in machines:
            os.close(machine.lock)
        for pipe in ready_pipes:
            os.close(pipe)
        for host in hosts:
            host.wait()  # it has forked the host and ended, or failed


def end_and_wait(paths: Sequence[Path], command: str = layout.TERMINATE) -> None:
    """Terminate these machines, or stop them, and wait until their hosts have ended. Raises TimeoutError."""
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            layout.write_command(str(path), command, {})
    until = time.monotonic() + TERMINATE_TIMEOUT_S
    for path in paths:
        if not locks.wait_until_free(str(path / layout.LOCK), max(0.0, until - time.monotonic())):
            raise TimeoutError(f"{path.name} does not end")


def _start_host(prepared: Prepared, ready_fd: int) -> subprocess.Popen[bytes] | None:
    """In a controller's machine, the host would end with that machine: request it from outside and return None."""
    if parent := os.environ.get(layout.PARENT_HOST_VARIABLE):
        spawner.request_spawn(parent, prepared.path, prepared.lock, ready_fd)
        return None
    return start_host(prepared, ready_fd)


def _wait_ready(ready_pipes: dict[int, Path]) -> None:
    until = time.monotonic() + START_TIMEOUT_S
    waiting = dict(ready_pipes)
    poll = select.poll()
    for pipe in waiting:
        poll.register(pipe, select.POLLIN)
    while waiting:
        ready = poll.poll(1000 * max(0.0, until - time.monotonic()))
        if not ready:
            log = next(iter(waiting.values())) / layout.HOST_LOG
            raise HostStartError(f"the host did not report within {START_TIMEOUT_S:g} s: see {log}")
        for pipe, _ in ready:
            poll.unregister(pipe)
            path = waiting.pop(pipe)
            text = os.read(pipe, 4096).decode(errors="replace")
            if text != "ok":
                raise HostStartError(text or _last_line(path / layout.HOST_LOG))


def _last_line(log: Path) -> str:
    with contextlib.suppress(OSError):
        if lines := log.read_text(errors="replace").strip().splitlines():
            return lines[-1]
    return "its host ended without an error message"
