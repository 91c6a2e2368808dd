"""A machine's first process: buries the dead, and keeps the agent running until it is done.

Like an init system on a virtual machine: an agent that dies is started again; one that ends with 0 is done, and the
machine powers itself off. SIGTERM (what `PERDURE_POWER_OFF` sends) powers it off at once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

RESTART_FIRST_S = 0.2
RESTART_CAP_S = 5.0
HEALTHY_S = 10.0  # an agent that lived this long is restarted without delay piled up from before

WATCHED = {signal.SIGCHLD, signal.SIGTERM}


def supervise(command: list[str], env: dict[str, str], cwd: str) -> int:
    """Run until the agent is done or the machine is powered off; the machine's exit code, 0.

    Every other process is left running: the caller ends them.
    """
    # Blocked signals are kept even for a namespace's first process, which ignores what it has no handler for.
    signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
    os.chdir(cwd)
    env = {**env, "PERDURE_POWER_OFF": f"kill -TERM {os.getpid()}"}
    delay_s = RESTART_FIRST_S
    while True:
        started = time.monotonic()
        status = _wait_for(_start(command, env))
        if status in (None, 0):
            return 0
        if time.monotonic() - started >= HEALTHY_S:
            delay_s = RESTART_FIRST_S
        print(f"perdure: the agent ended ({_in_words(status)}); again in {delay_s:g} s", flush=True)  # noqa: T201
        if _powered_off_within(delay_s):
            return 0
        delay_s = min(2 * delay_s, RESTART_CAP_S)


def kill_descendants() -> None:
    """Kill every process below this one, however far away it put itself. This process must adopt orphans."""
    while True:
        with contextlib.suppress(ProcessLookupError):
            for child in _children():
                os.kill(child, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)  # whose own children are this one's now
        except ChildProcessError:
            return


def _children() -> list[int]:
    with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
        return [int(word) for word in file.read().split()]


def _start(command: list[str], env: dict[str, str]) -> int:
    # Python ignores SIGPIPE, and this process blocks signals: neither is the agent's to inherit.
    return os.posix_spawn(
        command[0], command, env, setsid=True, setsigmask=(), setsigdef=(signal.SIGPIPE, signal.SIGXFSZ)
    )


def _wait_for(agent: int) -> int | None:
    """The agent's wait status; None once the machine is told to power off. Reaps everything else meanwhile."""
    while True:
        statuses = _reap()
        if agent in statuses:
            return statuses[agent]
        if signal.sigwait(WATCHED) == signal.SIGTERM:
            return None


def _powered_off_within(delay_s: float) -> bool:
    until = time.monotonic() + delay_s
    while (left_s := until - time.monotonic()) > 0:
        came = signal.sigtimedwait(WATCHED, left_s)
        if came is not None and came.si_signo == signal.SIGTERM:
            return True
        _reap()
    return False


def _reap() -> dict[int, int]:
    """Wait statuses of all children that have died."""
    statuses: dict[int, int] = {}
    with contextlib.suppress(ChildProcessError):
        while (dead := os.waitpid(-1, os.WNOHANG))[0]:
            statuses[dead[0]] = dead[1]
    return statuses


def _in_words(status: int) -> str:
    code = os.waitstatus_to_exitcode(status)
    return f"signal {-code}" if code < 0 else f"exit code {code}"
