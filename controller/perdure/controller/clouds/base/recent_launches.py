"""Machines that were launched a moment ago: a cloud may not list them yet, although they run."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from perdure.controller.clouds.base.protocol import Instance
from perdure.controller.runtime.clock import Clock

RECENT_S = 120.0


class RecentLaunches:
    """The machines that this process has launched in the last `RECENT_S` seconds. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._launches: dict[str, tuple[float, Instance]] = {}

    def add(self, launched: Iterable[Instance]) -> None:
        now = self._clock.now()
        with self._lock:
            self._launches = {id: entry for id, entry in self._launches.items() if now - entry[0] < RECENT_S}
            self._launches.update({instance.id: (now, instance) for instance in launched})

    def find(self, region: str, ids: Sequence[str]) -> list[Instance]:
        """Those of `ids` in this region, as the launch returned them."""
        now = self._clock.now()
        with self._lock:
            entries = [self._launches[id] for id in ids if id in self._launches]
        return [instance for at, instance in entries if now - at < RECENT_S and instance.region == region]
