"""The training job inside the machines: how much of it is done, and how much of that would survive."""

from __future__ import annotations


class Workload:
    """Work is counted in seconds of running. `checkpoint_every_s` 0: everything is durable the moment it is done."""

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
        """Go on from the newest checkpoint. When all will be done, if nothing comes between."""
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
