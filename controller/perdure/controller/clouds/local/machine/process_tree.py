"""Starts a machine: a process tree, isolated from this computer by namespaces.

`python -m perdure.controller.clouds.local.machine.process_tree KIND PLAN` tests whether KIND works here.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from typing import Any

from perdure.controller.clouds.local.machine import init, rootfs, syscalls

# Kinds of isolation, best first.
OVERLAY = rootfs.OVERLAY
BIND = rootfs.BIND
PROCESSES = "processes"


class MachineStartError(Exception):
    """The machine could not be started; only its folder is left."""


def start(kind: str, plan: dict[str, Any], disk: str, output: int, run: Callable[[], int]) -> int:
    """Start a machine whose first process calls `run` and writes to `output`. Returns its process id once `run` begins.

    The machine ends with the caller. The first process heads a PID namespace: when it ends, all processes of the
    machine do. With PROCESSES there is no such namespace: the first process kills the others before it ends, and if it
    is killed, the caller must kill them. Call this once per process. Raises MachineStartError.
    """
    caller = os.pidfd_open(os.getpid())
    ready_read, ready_write = os.pipe()
    try:
        _prepare_namespaces(kind)
        pid = os.fork()
    except OSError as error:
        raise MachineStartError(f"making a PID namespace: {error}") from error
    if pid == 0:
        _run_machine(kind, plan, disk, output, ready_write, caller, run)
    os.close(ready_write)
    os.close(caller)
    with open(ready_read, encoding="utf-8", errors="replace") as pipe:
        text = pipe.read()
    if text != "ok":
        os.waitpid(pid, 0)
        raise MachineStartError(text or "its first process died at once")
    return pid


def _prepare_namespaces(kind: str) -> None:
    if kind == PROCESSES:
        return
    user, group = os.geteuid(), os.getegid()
    if user == 0:
        syscalls.unshare(syscalls.CLONE_NEWPID)
        return
    syscalls.unshare(syscalls.CLONE_NEWUSER | syscalls.CLONE_NEWPID)
    for name, text in (("setgroups", "deny"), ("uid_map", f"0 {user} 1"), ("gid_map", f"0 {group} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)


def _run_machine(
    kind: str, plan: dict[str, Any], disk: str, output: int, ready_fd: int, caller: int, run: Callable[[], int]
) -> None:
    """The machine's first process. Never returns."""
    code = 1
    try:
        syscalls.signal_at_parents_death(signal.SIGTERM if kind == PROCESSES else signal.SIGKILL)
        if select.select([caller], [], [], 0)[0]:  # the caller died before the line above
            os._exit(1)
        try:
            os.setsid()
            _redirect(output)
            if kind == PROCESSES:
                syscalls.adopt_orphans()
            else:
                syscalls.unshare(syscalls.CLONE_NEWUTS | syscalls.CLONE_NEWIPC)
                socket.sethostname(plan["hostname"])
                rootfs.enter(kind, plan, disk)
            _close_all_but(ready_fd)
        except OSError as error:
            os.write(ready_fd, str(error).encode())
            os._exit(1)
        os.write(ready_fd, b"ok")
        os.close(ready_fd)
        code = run()
        if kind == PROCESSES:
            init.kill_descendants()
    except BaseException:
        traceback.print_exc()
        raise
    finally:
        os._exit(code)


def _redirect(output: int) -> None:
    nothing = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((nothing, 0), (output, 1), (output, 2)):
        os.dup2(source, target)


def _close_all_but(kept_fd: int) -> None:
    for fd in [int(name) for name in os.listdir("/proc/self/fd")]:
        if fd > 2 and fd != kept_fd:
            with contextlib.suppress(OSError):  # the descriptor of the listing itself
                os.close(fd)


def _probe(kind: str, plan: dict[str, Any], disk: str) -> str | None:
    """Why a machine of this kind does not work here; None if it does."""
    try:
        pid = start(kind, plan, disk, sys.stderr.fileno(), lambda: 0)
    except MachineStartError as failed:
        return str(failed)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return f"its first process ended with {code}" if code else None


if __name__ == "__main__":
    why = _probe(sys.argv[1], json.loads(sys.argv[2]), os.getcwd())
    sys.exit(f"{why}" if why else 0)
