"""When users last used the machines of jobs through streams: what autostop counts beside the jobs of a cluster."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field


@dataclass(frozen=True)
class MachineUse:
    """`is_entered`: a session or a command is open. `used_at`: the newest use (epoch seconds)."""

    used_at: float
    is_entered: bool


@dataclass
class StreamActivity:
    """The streams of this daemon. Thread-safe.

    A session or a command is a use for as long as it is open; a forwarded port, whenever bytes pass.
    """

    _entered: Counter[int] = field(default_factory=Counter)  # open sessions by job
    _used_at: dict[int, float] = field(default_factory=dict)  # of each job since the last `take`
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def entered(self, job_id: int) -> None:
        """A user has opened a session or a command on a machine of this job."""
        with self._lock:
            self._entered[job_id] += 1

    def left(self, job_id: int, now: float) -> None:
        """That session has ended."""
        with self._lock:
            self._entered -= Counter({job_id: 1})
            self._used_at[job_id] = now

    def used(self, job_id: int, now: float) -> None:
        """Bytes have passed."""
        with self._lock:
            self._used_at[job_id] = now

    def take(self, now: float) -> dict[int, MachineUse]:
        """How the machines of each job were used since the last call."""
        with self._lock:
            used_at, self._used_at = self._used_at, {}
            uses = {job_id: MachineUse(at, is_entered=False) for job_id, at in used_at.items()}
            return uses | {job_id: MachineUse(now, is_entered=True) for job_id in self._entered}
