"""The training job on the machines: how much of it is done, and how much of that is durable."""

from __future__ import annotations


class Workload:
    """Work is counted in seconds of running. With `checkpoint_every_s` 0, all work is durable as soon as it is done."""

    def __init__(self, work_s: float, checkpoint_every_s: float) -> None:
        self.work_s = work_s
        self.checkpoint_every_s = checkpoint_every_s
        self.durable_s = 0.0
        self.lost_s = 0.0
        self._resumed_s = 0.0
        self._running_since: float | None = None

    def done_s(self, now: float) -> float:
        return self.durable_s if self._running_since is None else self._resumed_s + now - self._running_since

    def begin(self, now: float) -> float:
        """Resume from the newest checkpoint. Returns when all work will be done if nothing interrupts it."""
        self._resumed_s, self._running_since = self.durable_s, now
        return now + self.work_s - self.durable_s

    def save(self, now: float) -> None:
        self.durable_s = self.done_s(now)

    def stop(self, now: float, *, saves: bool) -> None:
        done_s = self.done_s(now)
        if saves or not self.checkpoint_every_s:
            self.durable_s = done_s
        self.lost_s += done_s - self.durable_s
        self._running_since = None
