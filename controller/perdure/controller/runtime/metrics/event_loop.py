"""How late the event loop runs its callbacks: it serves the nodes and the API."""

from __future__ import annotations

import asyncio

from perdure.controller.runtime.metrics.metric_registry import Histogram

_INTERVAL_S = 0.5


class EventLoopLag:
    """Observes the delay of a timer on the running loop, twice a second, until the loop ends."""

    def __init__(self, histogram: Histogram) -> None:
        self._histogram = histogram
        self._loop = asyncio.get_running_loop()
        self._schedule()

    def _schedule(self) -> None:
        self._due_at = self._loop.time() + _INTERVAL_S
        self._loop.call_at(self._due_at, self._on_timer)

    def _on_timer(self) -> None:
        self._histogram.observe(max(0.0, self._loop.time() - self._due_at))
        self._schedule()
