"""What waits for the reconcile thread: items in the order in which they came, and a heap of things with their times."""

from __future__ import annotations

import heapq
import itertools
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from perdure.controller.clock import Clock

Item = TypeVar("Item")
Timed = TypeVar("Timed")

# Whoever waits comes round at least so often, in the world's seconds.
IDLE_S = 5.0


class Nothing(Exception):
    """Nothing is due, and nothing came in."""


class Agenda(Generic[Item, Timed]):
    """`put` and `backlog` from any thread; the rest is the reconcile thread's. `speed`: of `clock` beside the world.
    `presses`: whether an item can not wait as others can; see `is_pressed`."""

    def __init__(self, clock: Clock, speed: float, presses: Callable[[Item], bool] = lambda _item: False) -> None:
        self._clock = clock
        self._speed = speed
        self._presses = presses
        self._pressing = 0
        self._counting = threading.Lock()
        self._queue: queue.SimpleQueue[Item | None] = queue.SimpleQueue()
        self._first: deque[Item] = deque()
        self._timers: list[tuple[float, int, Timed]] = []
        self._order = itertools.count()
        self._thread: threading.Thread | None = None

    def begin(self, name: str, turn: Callable[[], bool]) -> None:
        """Have a thread take turns, until one says False."""

        def run() -> None:
            while turn():
                pass

        self._thread = threading.Thread(target=run, name=name, daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Have no more taken than what is queued, and wait for that."""
        self.put(None)
        if self._thread is not None:
            self._thread.join()

    def put(self, item: Item | None) -> None:
        """None: the last that there is to do."""
        self._count(item, 1)
        self._queue.put(item)

    def put_back(self, items: Iterable[Item]) -> None:
        """Have what was taken already taken again, in this order, before all that is queued."""
        self._first.extendleft(reversed(list(items)))

    def backlog(self) -> int:
        """How much is queued."""
        return self._queue.qsize()

    def at(self, at: float, what: Timed) -> None:
        """Have `what` due at `at`, by the clock."""
        heapq.heappush(self._timers, (at, next(self._order), what))

    @property
    def next_due(self) -> float | None:
        return self._timers[0][0] if self._timers else None

    @property
    def has_more(self) -> bool:
        """Whether there is something to be had without waiting."""
        return self.has_queued or self._is_due

    @property
    def has_queued(self) -> bool:
        return bool(self._first) or not self._queue.empty()

    @property
    def _is_due(self) -> bool:
        return bool(self._timers) and self._timers[0][0] <= self._clock.now()

    def due(self) -> tuple[float, Timed] | None:
        """Take the first of what is due, with its time."""
        if not self._is_due:
            return None
        at, _, what = heapq.heappop(self._timers)
        return at, what

    def next(self, *, block: bool) -> Item | None:
        """Take the next item; when `block`, wait for one until something is due, and no longer than `IDLE_S`.

        Raises Nothing.
        """
        if self._first:
            return self._first.popleft()
        next_due = self.next_due
        due_s = max(0.0, next_due - self._clock.now()) / self._speed if next_due is not None else IDLE_S
        try:
            item = self._queue.get(block, min(IDLE_S, due_s))
        except queue.Empty:
            raise Nothing from None
        self._count(item, -1)
        return item

    @property
    def is_pressed(self) -> bool:
        """Whether something is queued that can not wait as others can."""
        return self._pressing > 0

    def _count(self, item: Item | None, by: int) -> None:
        if item is not None and self._presses(item):
            with self._counting:
                self._pressing += by
