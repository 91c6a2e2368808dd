"""Records in a job's timeline who has entered its machines, and how."""

from __future__ import annotations

from perdure.controller.api.tunnel.names import NamedNode
from perdure.controller.api.tunnel.stream_frames import StreamKind
from perdure.controller.reconcile.inbox import ReconcilerInbox
from perdure.controller.reconcile.work_items import JobEvent
from perdure.controller.runtime.clock import Clock
from perdure.controller.store.records.agent_connections import Place
from perdure.recovery.actions import TimelineEntry

# A browser opens dozens of connections to a forwarded port, and rsync one per call: one entry stands for all of them.
REPEAT_AFTER_S = 600.0
_MAX_REMEMBERED = 10_000
_ACTIONS = {
    StreamKind.EXEC: "ran a command",
    StreamKind.SSH: "opened an ssh session",
    StreamKind.PORT: "connected to a port",
}


class EntryAudit:
    """Writes an entry for each user, node and kind of stream, at most one in `REPEAT_AFTER_S`. On the event loop."""

    def __init__(self, inbox: ReconcilerInbox, clock: Clock) -> None:
        self._inbox = inbox
        self._clock = clock
        self._recorded_at: dict[tuple[Place, StreamKind, str], float] = {}

    def record(self, named: NamedNode, kind: StreamKind, user: str) -> bool:
        """Returns whether an entry was written."""
        now, key = self._clock.now(), (named.place, kind, user)
        if now - self._recorded_at.get(key, -REPEAT_AFTER_S) < REPEAT_AFTER_S:
            return False
        if len(self._recorded_at) >= _MAX_REMEMBERED:
            self._recorded_at.clear()
        self._recorded_at[key] = now
        (job_id, task_index, generation), rank = named.place
        message = f"{user or 'a user'} {_ACTIONS[kind]}"
        data: dict[str, object] = {"user": user, "how": str(kind)}
        entry = TimelineEntry("node.entered", task_index, generation, rank, message=message, data=data)
        self._inbox.submit(JobEvent(job_id, notes=(entry,)))
        return True
