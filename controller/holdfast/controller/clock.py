"""The one place of the daemon that reads the wall clock. Everything else is handed a `Clock` or `now`."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol


class Clock(Protocol):
    def now(self) -> float:
        """Epoch seconds (UTC)."""
        ...


class SystemClock:
    def now(self) -> float:
        return time.time()


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
    world: Callable[[], float] = field(default=lambda: SystemClock().now())

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
