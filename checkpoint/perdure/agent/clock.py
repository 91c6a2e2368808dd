"""The clock of all deadlines: seconds since boot, including the time asleep. Nobody can set it.

A machine may set its wall clock in the middle of a drain, once it reaches its time server. That must not shorten the
workload's grace period, and must not let the workload outlive its machine. So times from outside are converted when
they arrive, and converted back where they leave this node.
"""

from __future__ import annotations

import time
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def now() -> float:
    """Seconds since this machine was booted."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def from_wall(at: float) -> float:
    """Convert `at` (epoch seconds) to this clock, by the wall clock as it is set now."""
    return now() + at - time.time()


def to_wall(at: float) -> float:
    """Convert a time of this clock to epoch seconds, by the wall clock as it is set now."""
    return time.time() + at - now()


def boot_id() -> str:
    """Identifies this boot; times of another boot are meaningless. Empty where the kernel does not provide it."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return ""
