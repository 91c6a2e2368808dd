"""Wakes the thread that polls for the writes of other controllers."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection


class WakeSignal:
    """Collects what the next poll has to scan, and wakes the polling thread. `wake` may be called from any thread."""

    def __init__(self, event: threading.Event | None = None) -> None:
        self.is_full_scan_due = True
        self._event = event or threading.Event()
        self._changed: deque[int] = deque()

    def wake(self, jobs: Collection[int] = (), *, full: bool = False) -> None:
        """Poll now, and scan `jobs`, or all of them if `full`."""
        self.is_full_scan_due = self.is_full_scan_due or full
        self._changed.extend(jobs)
        self._event.set()

    def wait(self, timeout_s: float) -> bool:
        """Wait for a `wake` since the last `take`. Returns whether there was one."""
        return self._event.wait(timeout_s)

    def take(self) -> set[int]:
        """The jobs to scan since the last call."""
        self._event.clear()
        return {self._changed.popleft() for _ in range(len(self._changed))}
