"""Where the daemon can be made to die: named points around each transaction and each call that changes the outside.

A hook for tests, which kill a real daemon at every point and start it again. `PERDURE_CRASH_AT=launch.called:2` in a
daemon's environment lets it kill itself (SIGKILL: nothing is tidied up) when it reaches `launch.called` the second
time. Unarmed, a point costs one comparison.
"""

from __future__ import annotations

import itertools
import os
import signal
from dataclasses import dataclass, field
from typing import Literal, get_args

VARIABLE = "PERDURE_CRASH_AT"

# "-ing": about to be done, or in the middle of it (a transaction is not committed). "-ed": done, and nobody told yet.
Point = Literal[
    "lease.begun",
    "lease.claimed",
    "lease.renewed",
    "jobs.adopted",
    "endpoint.published",
    "upload.keeping",
    "upload.kept",
    "job.accepting",
    "job.accepted",
    "job.settling",
    "job.settled",
    "cancel.recorded",
    "preemption.asked",
    "turn.recording",
    "turn.recorded",
    "intent.closing",
    "intent.closed",
    "launch.calling",
    "launch.called",
    "launch.refused",
    "local_machines.prepared",
    "terminate.calling",
    "terminate.called",
    "terminate.confirmed",
    "bucket.making",
    "bucket.made",
    "bucket.filled",
    "bucket.removing",
    "bucket.removed",
    "bucket.forgotten",
    "sweep.listed",
    "orphan.ending",
    "orphan.ended",
    "spec.told",
    "agent.welcoming",
    "agent.noticed",
    "agent.ended",
    "log.appending",
    "log.appended",
    "checkpoint.recording",
    "checkpoint.recorded",
]
POINTS: tuple[str, ...] = get_args(Point)


@dataclass(frozen=True)
class _Fuse:
    point: str
    nth: int
    _times: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def reach(self, point: str) -> None:
        if point == self.point and next(self._times) == self.nth:
            os.write(2, f"crash point {point}:{self.nth} is reached\n".encode())
            os.kill(os.getpid(), signal.SIGKILL)


_fuse: _Fuse | None = None


def reach(point: Point) -> None:
    """Say that `point` is reached. Ends the process, without any clean-up, if it is armed for this time."""
    if _fuse is not None:
        _fuse.reach(point)


def arm(wanted: str) -> None:
    """Have the process killed at `POINT` or `POINT:NTH`; an empty text disarms. Raises ValueError."""
    global _fuse  # noqa: PLW0603 - the hook of a whole process, set once before anything runs
    point, _, times = wanted.partition(":")
    if wanted and point not in POINTS:
        raise ValueError(f"{VARIABLE}: there is no crash point {point!r}; there are: {', '.join(POINTS)}")
    nth = times or "1"
    if not nth.isdecimal() or int(nth) < 1:
        raise ValueError(f"{VARIABLE}: {times!r} is no number of times from 1; write {point}:2 for the second time")
    _fuse = _Fuse(point, int(nth)) if wanted else None
