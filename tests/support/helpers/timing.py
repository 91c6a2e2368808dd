"""Time limits that grow on a slow or busy machine. Every wait of a test goes through here.

A limit is written for an idle, recent computer, and is multiplied by `slowdown()`. A passing test ends as soon as its
condition is true, so a longer limit costs time only if something is broken.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from threading import Event
from typing import TypeVar

Value = TypeVar("Value")

# The CPU time of the probe below on the computer that the limits were chosen on.
REFERENCE_PROBE_S = 0.04
MAX_SLOWDOWN = 10.0
_PROBES = 3
_PROBE = [sys.executable, "-I", "-S", "-c", "sum(n * n for n in range(500_000))"]


@cache
def machine_slowdown() -> float:
    """How much more CPU time a small program needs here than on the reference; measured once per process."""
    taken_s = []
    for _ in range(_PROBES):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run(_PROBE, check=True, stdin=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        taken_s.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return max(1.0, min(taken_s) / REFERENCE_PROBE_S)


def load_slowdown() -> float:
    """How many processes share a core: the average of the last minute or the number of this moment, if higher."""
    try:
        with open("/proc/loadavg", encoding="ascii") as file:
            fields = file.read().split()
        waiting = max(float(fields[0]), float(fields[3].partition("/")[0]))
    except OSError:
        waiting = os.getloadavg()[0]
    return max(1.0, waiting / (os.cpu_count() or 1))


def slowdown() -> float:
    """The factor for time limits now, from 1 to `MAX_SLOWDOWN`."""
    return min(MAX_SLOWDOWN, machine_slowdown() * load_slowdown())


def scaled(seconds: float) -> float:
    """A limit of `seconds` on an idle machine, for this machine as it is now."""
    return seconds * slowdown()


class Deadline:
    """A limit that is extended if the machine becomes busier while a test waits. It is never shortened."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._started_at = time.monotonic()
        self._limit_s = scaled(seconds)

    @property
    def remaining_s(self) -> float:
        self._limit_s = max(self._limit_s, scaled(self._seconds))
        return self._limit_s - (time.monotonic() - self._started_at)

    @property
    def has_passed(self) -> bool:
        return self.remaining_s <= 0

    def __str__(self) -> str:
        return f"{self._limit_s:.0f} s ({self._seconds:g} s on an idle machine)"


def wait_until(
    condition: Callable[[], Value | None],
    what: str | Callable[[], str] = "the condition",
    timeout_s: float = 30.0,
    *,
    poll_s: float = 0.05,
) -> Value:
    """Return the first true value of `condition`; fail after `timeout_s`, scaled. `what` is named in the failure."""
    deadline = Deadline(timeout_s)
    while not (value := condition()):
        if deadline.has_passed:
            raise AssertionError(f"not within {deadline}: {what if isinstance(what, str) else what()}")
        Event().wait(poll_s)
    return value


def pause(seconds: float) -> None:
    """Let `seconds` pass, exactly: for outages and storms whose length is the subject. Nothing here is scaled."""
    Event().wait(seconds)
