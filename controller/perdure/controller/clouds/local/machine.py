"""Starts a machine: a process tree of its own, as much apart from this computer as the kernel lets it.

`python -m perdure.controller.clouds.local.machine KIND PLAN` tries whether a machine of KIND can be had here.
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

from perdure.controller.clouds.local import init, rootfs, syscalls

# Kinds of isolation, best first.
OVERLAY = rootfs.OVERLAY
BIND = rootfs.BIND
PROCESSES = "processes"


class MachineFailed(Exception):
    """The machine could not be started; nothing of it is left but its folder."""


def start(kind: str, plan: dict[str, Any], disk: str, output: int, run: Callable[[], int]) -> int:
    """Start a machine whose first process does `run` and writes to `output`; its process id, once `run` is entered.

    The caller's death is the machine's. The first process is the first of a PID namespace: its end is the end of every
    process of the machine. With PROCESSES there is no such namespace: the first process ends the others before it ends,
    and if it is killed, the caller must. Call it once per process. Raises MachineFailed.
    """
    caller = os.pidfd_open(os.getpid())
    said, say = os.pipe()
    try:
        _prepare_namespaces(kind)
        pid = os.fork()
    except OSError as error:
        raise MachineFailed(f"making a PID namespace: {error}") from error
    if pid == 0:
        _become_machine(kind, plan, disk, output, say, caller, run)
    os.close(say)
    os.close(caller)
    with open(said, encoding="utf-8", errors="replace") as answer:
        text = answer.read()
    if text != "ok":
        os.waitpid(pid, 0)
        raise MachineFailed(text or "its first process died at once")
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


def _become_machine(
    kind: str, plan: dict[str, Any], disk: str, output: int, say: int, caller: int, run: Callable[[], int]
) -> None:
    """In the machine's first process. Never returns."""
    code = 1
    try:
        syscalls.signal_at_parents_death(signal.SIGTERM if kind == PROCESSES else signal.SIGKILL)
        if select.select([caller], [], [], 0)[0]:  # it died before the line above
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
            _close_all_but(say)
        except OSError as error:
            os.write(say, str(error).encode())
            os._exit(1)
        os.write(say, b"ok")
        os.close(say)
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


def _close_all_but(kept: int) -> None:
    for fd in [int(name) for name in os.listdir("/proc/self/fd")]:
        if fd > 2 and fd != kept:
            with contextlib.suppress(OSError):  # the listing's own
                os.close(fd)


def _try(kind: str, plan: dict[str, Any], disk: str) -> str | None:
    """Why a machine of this kind can not be had here; None when it can."""
    try:
        pid = start(kind, plan, disk, sys.stderr.fileno(), lambda: 0)
    except MachineFailed as failed:
        return str(failed)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return f"its first process ended with {code}" if code else None


if __name__ == "__main__":
    why = _try(sys.argv[1], json.loads(sys.argv[2]), os.getcwd())
    sys.exit(f"{why}" if why else 0)
