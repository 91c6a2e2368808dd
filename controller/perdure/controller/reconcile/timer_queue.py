"""The queue of the reconcile thread: items in order of arrival, and a heap of items with a due time. `JobTurns` has the
items that cannot be handled yet, because a decision on their job comes first."""

from __future__ import annotations

import heapq
import itertools
import math
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

from perdure.controller.runtime.clock import Clock
from perdure.controller.runtime.loop_guard import LoopGuard

Item = TypeVar("Item")
Timed = TypeVar("Timed")

# The longest that `next` waits, in seconds of real time.
IDLE_S = 5.0


class QueueEmpty(Exception):
    """Nothing is due, and no item has come in."""


class JobTurns(Generic[Item]):
    """Items that wait for an earlier one of their job, in order. Jobs take turns, so that none waits for the many items
    of another one. Only the reconcile thread uses it."""

    def __init__(self) -> None:
        self._waiting: dict[int, deque[Item]] = {}

    def __contains__(self, job_id: int) -> bool:
        return job_id in self._waiting

    def __len__(self) -> int:
        """How many jobs have items."""
        return len(self._waiting)

    def add(self, job_id: int, item: Item) -> None:
        self._waiting.setdefault(job_id, deque()).append(item)

    def pop_all(self, job_id: int) -> Iterable[Item]:
        """Remove and return all items of a job."""
        return self._waiting.pop(job_id, ())

    def take(self, limit: int) -> list[Item]:
        """Remove and return the first item of each of the next `limit` jobs."""
        taken = []
        for job_id in list(itertools.islice(self._waiting, limit)):
            items = self._waiting.pop(job_id)
            taken.append(items.popleft())
            if items:
                self._waiting[job_id] = items  # now the last of all jobs
        return taken


class TimerQueue(Generic[Item, Timed]):
    """A queue with timers. Any thread may call `enqueue`, `backlog` and `oldest_*`; only the reconcile thread calls the
    rest.

    `speed`: of `clock`, relative to real time. `is_urgent`: whether other work yields to an item; see `has_urgent`.
    """

    def __init__(self, clock: Clock, speed: float, is_urgent: Callable[[Item], bool] = lambda _item: False) -> None:
        self._clock = clock
        self._speed = speed
        self._is_urgent = is_urgent
        self._urgent = 0
        self._counting = threading.Lock()
        self._queue: queue.SimpleQueue[Item | None] = queue.SimpleQueue()
        self._queued_at: deque[float] = deque()  # of each item in `_queue`
        self._timers: list[tuple[float, int, Timed]] = []
        self._order = itertools.count()
        self._thread: threading.Thread | None = None

    def start(self, name: str, run_once: Callable[[], bool]) -> None:
        """Start a thread that calls `run_once` until it returns False. An exception does not end it."""
        guard = LoopGuard(name)

        def run() -> None:
            goes_on = True
            while goes_on:
                with guard:
                    goes_on = run_once()

        self._thread = threading.Thread(target=run, name=name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Let the thread handle the items that are queued and end; wait for that."""
        self.enqueue(None)
        if self._thread is not None:
            self._thread.join()

    def enqueue(self, item: Item | None) -> None:
        """Add an item; None marks the end."""
        self._count(item, 1)
        self._queued_at.append(self._clock.now())
        self._queue.put(item)

    def backlog(self) -> int:
        """How many items are queued."""
        return self._queue.qsize()

    def schedule(self, at: float, item: Timed) -> None:
        """Make `item` due at `at` (epoch seconds by the clock).

        Raises ValueError for a time that is not finite: NaN would void the order of all timers.
        """
        if not math.isfinite(at):
            raise ValueError(f"a timer cannot be due at {at}: {item!r:.200}")
        heapq.heappush(self._timers, (at, next(self._order), item))

    def oldest_due(self) -> float | None:
        """The earliest time of all timers; None if there is none."""
        return min((at for at, _, _ in list(self._timers)), default=None)

    def oldest_queued(self) -> float | None:
        """Since when the item that is next has been queued; None if none is."""
        try:
            return self._queued_at[0]
        except IndexError:
            return None

    @property
    def next_due(self) -> float | None:
        return self._timers[0][0] if self._timers else None

    @property
    def has_more(self) -> bool:
        """Whether an item is queued or due."""
        return self.has_queued or self._is_due

    @property
    def has_queued(self) -> bool:
        return not self._queue.empty()

    @property
    def _is_due(self) -> bool:
        return bool(self._timers) and self._timers[0][0] <= self._clock.now()

    def pop_due(self) -> tuple[float, Timed] | None:
        """Remove and return the first due item, with its time."""
        if not self._is_due:
            return None
        at, _, item = heapq.heappop(self._timers)
        return at, item

    def next(self, *, block: bool) -> Item | None:
        """Remove and return the next item. With `block`, wait for one until a timer is due, and at most `IDLE_S`.

        Raises QueueEmpty.
        """
        next_due = self.next_due
        due_s = max(0.0, next_due - self._clock.now()) / self._speed if next_due is not None else IDLE_S
        try:
            item = self._queue.get(block, min(IDLE_S, due_s))
        except queue.Empty:
            raise QueueEmpty from None
        self._queued_at.popleft()
        self._count(item, -1)
        return item

    @property
    def has_urgent(self) -> bool:
        """Whether an urgent item is queued."""
        return self._urgent > 0

    def _count(self, item: Item | None, by: int) -> None:
        if item is not None and self._is_urgent(item):
            with self._counting:
                self._urgent += by
