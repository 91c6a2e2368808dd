"""A machine's first process: reaps ended processes, and keeps the agent running until it is done.

Like an init system on a virtual machine: an agent that fails is restarted; one that exits with 0 is done, and the
machine powers itself off. SIGTERM, which `PERDURE_POWER_OFF` sends, powers it off immediately.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

INITIAL_RESTART_DELAY_S = 0.2
MAX_RESTART_DELAY_S = 5.0
HEALTHY_S = 10.0  # after this run time, a restart begins with the initial delay again

WATCHED = {signal.SIGCHLD, signal.SIGTERM}


def supervise(command: list[str], env: dict[str, str], cwd: str) -> int:
    """Run until the agent is done or the machine is powered off. Returns the machine's exit code, 0.

    Other processes keep running: the caller ends them.
    """
    # A namespace's first process ignores signals without a handler, but blocked ones stay pending.
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    os.chdir(cwd)
    env = {**env, "PERDURE_POWER_OFF": f"kill -TERM {os.getpid()}"}
    delay_s = INITIAL_RESTART_DELAY_S
    while True:
        started = time.monotonic()
        status = _wait_for(_start(command, env))
        if status in (None, 0):
            return 0
        if time.monotonic() - started >= HEALTHY_S:
            delay_s = INITIAL_RESTART_DELAY_S
        print(f"perdure: the agent ended ({_describe(status)}); restart in {delay_s:g} s", flush=True)  # noqa: T201
        if _powered_off_within(delay_s):
            return 0
        delay_s = min(2 * delay_s, MAX_RESTART_DELAY_S)


def kill_descendants() -> None:
    """Kill all descendants of this process, also in other sessions. This process must adopt orphans."""
    while True:
        with contextlib.suppress(ProcessLookupError):
            for child in _children():
                os.kill(child, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)  # its children become this process's
        except ChildProcessError:
            return


def _children() -> list[int]:
    with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
        return [int(word) for word in file.read().split()]


def _start(command: list[str], env: dict[str, str]) -> int:
    # Python ignores SIGPIPE, and this process blocks signals: the agent must inherit neither.
    return os.posix_spawn(
        command[0], command, env, setsid=True, setsigmask=(), setsigdef=(signal.SIGPIPE, signal.SIGXFSZ)
    )


def _wait_for(agent: int) -> int | None:
    """The agent's wait status; None if the machine is to power off. Reaps other processes meanwhile."""
    while True:
        statuses = _reap()
        if agent in statuses:
            return statuses[agent]
        if signal.sigwait(WATCHED) == signal.SIGTERM:
            return None


def _powered_off_within(delay_s: float) -> bool:
    until = time.monotonic() + delay_s
    while (left_s := until - time.monotonic()) > 0:
        received = signal.sigtimedwait(WATCHED, left_s)
        if received is not None and received.si_signo == signal.SIGTERM:
            return True
        _reap()
    return False


def _reap() -> dict[int, int]:
    """Wait statuses of all children that have ended."""
    statuses: dict[int, int] = {}
    with contextlib.suppress(ChildProcessError):
        while (dead := os.waitpid(-1, os.WNOHANG))[0]:
            statuses[dead[0]] = dead[1]
    return statuses


def _describe(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return f"signal {-code}" if code < 0 else f"exit code {code}"
