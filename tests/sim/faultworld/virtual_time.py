"""Virtual time: the queue of scheduled calls, and the clocks of machines."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

START = 1_800_000_000.0  # epoch seconds at the start of every history


class Scheduler:
    """The clock of the world. Calls that are due at the same time run in the order in which they were scheduled."""

    def __init__(self) -> None:
        self._now = START
        self._queue: list[tuple[float, int, Callable[..., object], tuple[Any, ...]]] = []
        self._order = itertools.count()
        self.after_each: Callable[[], object] = lambda: None

    def now(self) -> float:
        return self._now

    def at(self, when: float, do: Callable[..., object], *args: Any) -> None:
        heapq.heappush(self._queue, (max(when, self._now), next(self._order), do, args))

    def after(self, seconds: float, do: Callable[..., object], *args: Any) -> None:
        self.at(self._now + seconds, do, *args)

    def step(self) -> bool:
        """Run the next call. Returns False if there is none."""
        if not self._queue:
            return False
        when, _, do, args = heapq.heappop(self._queue)
        # A thread that waits within another step may have advanced the time already.
        self._now = max(self._now, when)
        do(*args)
        self.after_each()
        return True

    def run_until(self, when: float) -> None:
        """Run every call that is due by `when`."""
        while self._queue and self._queue[0][0] <= when:
            self.step()
        self._now = max(self._now, when)


@dataclass(frozen=True)
class SkewedClock:
    """A machine's own clock, `skew_s` ahead of the world's."""

    world: Scheduler
    skew_s: float

    def now(self) -> float:
        return self.world.now() + self.skew_s
