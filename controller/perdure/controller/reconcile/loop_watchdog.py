"""Checks that the reconcile loop keeps up: compares its oldest due timer and its oldest queued item with now.

It looks at all timers, and not only at the one that the queue would take next: the order of the queue is among the
things that may be broken.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import structlog

from perdure.controller.reconcile.timer_queue import TimerQueue
from perdure.controller.runtime.clock import Clock

log = structlog.get_logger(__name__)

# An unavailable database may block the loop for half a minute: the time limit of a statement or of a connection.
LIMIT_S = 60.0
INTERVAL_S = 5.0
_CACHE_S = 1.0


class Watchdog:
    """Safe to use from any thread. `speed`: of `clock`, relative to real time."""

    def __init__(
        self,
        queue: TimerQueue[Any, Any],
        clock: Clock,
        speed: float = 1.0,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._queue = queue
        self._clock = clock
        self._speed = speed
        self._monotonic = monotonic
        self._checked: tuple[float, str | None] = (float("-inf"), None)
        self._is_overdue = False

    def problem(self) -> str | None:
        """What is overdue by more than `LIMIT_S`, as a sentence; None if nothing is. At most one second old."""
        at, known = self._checked
        now = self._monotonic()
        if now - at < _CACHE_S:
            return known
        problem = self._find_problem()
        self._checked = (now, problem)
        return problem

    def check(self) -> None:
        """Log when the loop falls behind, and when it has caught up again: one line each."""
        problem = self.problem()
        if problem is not None and not self._is_overdue:
            log.error("watchdog.overdue", why=problem)
        elif problem is None and self._is_overdue:
            log.warning("watchdog.recovered")
        self._is_overdue = problem is not None

    def _find_problem(self) -> str | None:
        now = self._clock.now()
        due_at, queued_at = self._queue.oldest_due(), self._queue.oldest_queued()
        timer_s = 0.0 if due_at is None else (now - due_at) / self._speed
        item_s = 0.0 if queued_at is None else (now - queued_at) / self._speed
        if timer_s > LIMIT_S:
            return f"a timer has been due for {timer_s:.0f} s"
        if item_s > LIMIT_S:
            return f"an event has been queued for {item_s:.0f} s"
        return None
