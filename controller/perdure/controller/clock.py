"""The one place of the daemon that reads the wall clock. Everything else is handed a `Clock` or `now`."""

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


# How much faster or slower than time itself the daemon's clock may go, until it agrees with the wall clock again.
PACE = 0.05


def _since_boot() -> float:
    """Seconds that nobody can set, and that a computer's sleep counts in."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class SystemClock:
    """The wall clock, but that it never leaps: where that is set, this one follows by and by.

    A wall clock that is set ahead must not make every node silent and every wait over at once, nor one that is set back
    let them wait for as long again. `wall` and `since_boot` are what is read.
    """

    def __init__(self, wall: Callable[[], float] = time.time, since_boot: Callable[[], float] = _since_boot) -> None:
        self._wall = wall
        self._since_boot = since_boot
        self._lock = threading.Lock()
        self._read_at = since_boot()
        self._now = wall()

    def now(self) -> float:
        with self._lock:
            read_at = self._since_boot()
            passed_s, self._read_at = read_at - self._read_at, read_at
            most_s = PACE * passed_s
            self._now += passed_s + max(-most_s, min(most_s, self._wall() - self._now - passed_s))
            return self._now


@dataclass(frozen=True)
class Pace:
    """How a controller's time runs beside the world's: `speed` times as fast from `since` on, where both agree.

    Times that come from machines, or go to them, are the world's; whoever hands them on converts them.
    """

    since: float = 0.0
    speed: float = 1.0

    def of_world(self, at: float) -> float:
        """The controller's time when it is `at` in the world. Epoch seconds, both."""
        return self.since + (at - self.since) * self.speed

    def in_world(self, at: float) -> float:
        """The world's time when it is `at` for the controller."""
        return self.since + (at - self.since) / self.speed


REAL_TIME = Pace()


@dataclass(frozen=True)
class PacedClock:
    """The time of a controller that lives faster than the world."""

    pace: Pace
    world: Callable[[], float] = field(default_factory=lambda: SystemClock().now)

    def now(self) -> float:
        return self.pace.of_world(self.world())


@dataclass
class ManualClock:
    """A clock that moves when told. For tests and simulation."""

    at: float = 1_800_000_000.0

    def now(self) -> float:
        return self.at

    def advance(self, seconds: float) -> None:
        self.at += seconds
