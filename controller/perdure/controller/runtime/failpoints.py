"""Failpoints: named places around every transaction and external call at which tests can kill the daemon.

`PERDURE_FAILPOINT=launch.called:2` in the environment of a daemon, or of a command, makes it kill itself with SIGKILL,
without any cleanup, when it reaches `launch.called` for the second time. A disabled failpoint costs one comparison.
"""

from __future__ import annotations

import itertools
import os
import signal
from dataclasses import dataclass, field
from typing import Literal, get_args

VARIABLE = "PERDURE_FAILPOINT"

# "-ing": about to happen, or the transaction is not committed yet. "-ed": it happened, and nobody was notified yet.
Failpoint = Literal[
    "lease.begun",
    "lease.claimed",
    "lease.renewed",
    "jobs.adopted",
    "endpoint.published",
    "watermark.advanced",
    "upload.storing",
    "upload.stored",
    "job.accepting",
    "job.accepted",
    "job.finalizing",
    "job.finalized",
    "cancel.recorded",
    "preemption.requested",
    "event.recording",
    "event.recorded",
    "intent.closing",
    "intent.closed",
    "launch.calling",
    "launch.called",
    "launch.rejected",
    "local_machines.prepared",
    "local_machines.ended",
    "terminate.calling",
    "terminate.called",
    "terminate.confirmed",
    "bucket.creating",
    "bucket.created",
    "bucket.filled",
    "bucket.removing",
    "bucket.removed",
    "bucket.record_removed",
    "sweep.listed",
    "orphan.terminating",
    "orphan.terminated",
    "spec.built",
    "agent.welcoming",
    "agent.notice_received",
    "agent.ended",
    "log.appending",
    "log.appended",
    "checkpoint.recording",
    "checkpoint.recorded",
]
CommandFailpoint = Literal[
    "backup.writing",
    "backup.written",
    "restore.staged",
    "restore.moving",
    "restore.moved",
]
# Of a daemon that sends notifications.
NotificationFailpoint = Literal["notification.claimed", "notification.sent", "notification.marked"]
ClusterFailpoint = Literal[
    "cluster.created",
    "cluster.started",
    "cluster.launched",
    "cluster.stopped",
    "cluster.downed",
    "home.creating",
    "disk.stopping",
    "disk.stopped",
    "disk.starting",
    "disk.started",
    "disk.removing",
    "disk.removed",
    "slot.granted",
    "slot.taken",
    "slot.ended",
]
ServiceFailpoint = Literal[
    "service.created",
    "service.updated",
    "service.decided",
    "service.downed",
    "replica.launched",
    "replica.changed",
]
FAILPOINTS: tuple[str, ...] = get_args(Failpoint)
"""Of a daemon."""
CLUSTER_FAILPOINTS: tuple[str, ...] = get_args(ClusterFailpoint)
"""Of a daemon that has clusters."""
SERVICE_FAILPOINTS: tuple[str, ...] = get_args(ServiceFailpoint)
"""Of a daemon that has services."""
COMMAND_FAILPOINTS: tuple[str, ...] = get_args(CommandFailpoint)
"""Of commands that change a home."""
NOTIFICATION_FAILPOINTS: tuple[str, ...] = get_args(NotificationFailpoint)
"""Of a daemon whose configuration has channels."""


@dataclass(frozen=True)
class _Trigger:
    point: str
    nth: int
    _count: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def hit(self, point: str) -> None:
        if point == self.point and next(self._count) == self.nth:
            os.write(2, f"failpoint {point}:{self.nth} reached\n".encode())
            os.kill(os.getpid(), signal.SIGKILL)


_trigger: _Trigger | None = None


def failpoint(
    point: Failpoint | ClusterFailpoint | ServiceFailpoint | CommandFailpoint | NotificationFailpoint,
) -> None:
    """Mark that execution is at `point`. Kills the process if that failpoint is enabled and this is its nth visit."""
    if _trigger is not None:
        _trigger.hit(point)


def enable(spec: str) -> None:
    """Enable the failpoint `POINT` or `POINT:NTH` for this process; "" disables it. Raises ValueError."""
    global _trigger  # noqa: PLW0603 - one hook per process, set once at its start
    point, _, number = spec.partition(":")
    known = FAILPOINTS + CLUSTER_FAILPOINTS + SERVICE_FAILPOINTS + COMMAND_FAILPOINTS + NOTIFICATION_FAILPOINTS
    if spec and point not in known:
        raise ValueError(f"{VARIABLE}: there is no failpoint {point!r}; known: {', '.join(known)}")
    nth = number or "1"
    if not nth.isdecimal() or int(nth) < 1:
        raise ValueError(f"{VARIABLE}: {number!r} is not a number from 1; write {point}:2 for the second time")
    _trigger = _Trigger(point, int(nth)) if spec else None
