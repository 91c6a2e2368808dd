"""What was bought a moment ago: a cloud may not show it yet, which is no sign of its death."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from perdure.controller.clock import Clock
from perdure.controller.clouds.base import Instance

FRESH_S = 120.0


class Fresh:
    """The machines that this process has bought in the last `FRESH_S` seconds. Shared by threads."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._bought: dict[str, tuple[float, Instance]] = {}

    def remember(self, bought: Iterable[Instance]) -> None:
        now = self._clock.now()
        with self._lock:
            self._bought = {id: kept for id, kept in self._bought.items() if now - kept[0] < FRESH_S}
            self._bought.update({instance.id: (now, instance) for instance in bought})

    def among(self, region: str, ids: Sequence[str]) -> list[Instance]:
        """Those of `ids` that stand in this region, as they were when they were bought."""
        now = self._clock.now()
        with self._lock:
            kept = [self._bought[id] for id in ids if id in self._bought]
        return [instance for at, instance in kept if now - at < FRESH_S and instance.region == region]
