"""The earliest of many times that change often: without a scan."""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)


class OldestTime(Generic[Key]):
    """A time for each key, and the earliest of all. Each call takes logarithmic time, amortized. For one thread."""

    def __init__(self) -> None:
        self._times: dict[Key, float] = {}
        # Entries whose time has changed since stay here until they come first, or until they are the majority.
        self._heap: list[tuple[float, int, Key]] = []
        self._pushed = 0

    def __len__(self) -> int:
        return len(self._times)

    def __contains__(self, key: Key) -> bool:
        return key in self._times

    def set(self, key: Key, at: float) -> None:
        self._times[key] = at
        self._pushed += 1
        heapq.heappush(self._heap, (at, self._pushed, key))
        if len(self._heap) > 2 * len(self._times) + 64:
            self._heap = [(time, order, key) for order, (key, time) in enumerate(self._times.items())]
            heapq.heapify(self._heap)

    def discard(self, key: Key) -> float | None:
        """Forget the key. Returns its time; None if it had none."""
        return self._times.pop(key, None)

    def oldest(self) -> float | None:
        """The earliest time; None if there is none."""
        while self._heap:
            at, _, key = self._heap[0]
            if self._times.get(key) == at:
                return at
            heapq.heappop(self._heap)
        return None
