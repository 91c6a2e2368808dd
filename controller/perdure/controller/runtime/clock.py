"""The daemon's clocks. Only this module reads the wall clock; everything else receives a `Clock` or `now`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Epoch seconds (UTC)."""
        ...


# The daemon's clock runs at most this much faster or slower than real time until it agrees with the wall clock again.
MAX_SLEW = 0.05


def since_boot() -> float:
    """Seconds since boot: a clock that cannot be set and that includes suspended time."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class SystemClock:
    """The wall clock without jumps: when the wall clock is set, this clock approaches it gradually.

    Otherwise a wall clock that is set forward would disconnect every node and end every wait at once, and one that is
    set back would prolong them. `wall` and `since_boot` are the clocks that it reads.
    """

    def __init__(self, wall: Callable[[], float] = time.time, since_boot: Callable[[], float] = since_boot) -> None:
        self._wall = wall
        self._since_boot = since_boot
        self._lock = threading.Lock()
        self._last_since_boot = since_boot()
        self._now = wall()

    def now(self) -> float:
        with self._lock:
            since_boot = self._since_boot()
            elapsed_s, self._last_since_boot = since_boot - self._last_since_boot, since_boot
            max_slew_s = MAX_SLEW * elapsed_s
            self._now += elapsed_s + max(-max_slew_s, min(max_slew_s, self._wall() - self._now - elapsed_s))
            return self._now


@dataclass(frozen=True)
class TimeScale:
    """The ratio of a controller's time to wall-clock time: `speed` times as fast from `since` on, where both agree.

    Times that machines send or receive are wall-clock times; the code that exchanges them converts.
    """

    since: float = 0.0
    speed: float = 1.0

    def from_wall(self, at: float) -> float:
        """The controller's time at the wall-clock time `at`. Both are epoch seconds."""
        return self.since + (at - self.since) * self.speed

    def to_wall(self, at: float) -> float:
        """The wall-clock time at the controller's time `at`."""
        return self.since + (at - self.since) / self.speed


REAL_TIME = TimeScale()


@dataclass(frozen=True)
class ScaledClock:
    """The clock of a controller whose time runs faster than real time."""

    time_scale: TimeScale
    wall: Callable[[], float] = field(default_factory=lambda: SystemClock().now)

    def now(self) -> float:
        return self.time_scale.from_wall(self.wall())


@dataclass
class ManualClock:
    """A clock that only `advance` moves. For tests and simulation."""

    at: float = 1_800_000_000.0

    def now(self) -> float:
        return self.at

    def advance(self, seconds: float) -> None:
        self.at += seconds
