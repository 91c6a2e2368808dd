"""The clock that deadlines are kept on: it counts on while the machine sleeps, and nobody can set it.

A wall clock that is set in the middle of a drain, as a machine does once it has found its time server, must neither cut
the workload's grace short nor let it outlive its machine. What comes from outside is turned into this clock's time when
it comes, and back where others are told.
"""

from __future__ import annotations

import time
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def now() -> float:
    """Seconds since this machine was booted."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def from_wall(at: float) -> float:
    """The time on this clock that is `at` (epoch seconds) on the wall clock as it is set now."""
    return now() + at - time.time()


def to_wall(at: float) -> float:
    """The epoch seconds, on the wall clock as it is set now, of a time on this clock."""
    return time.time() + at - now()


def boot_id() -> str:
    """What tells this boot from any other: times of another are worth nothing."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""
