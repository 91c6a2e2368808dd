"""Anti-entropy: compares the recorded state of nodes with the state of their connections, and resends what differs.

Directives and reports describe states and not changes. So a message that was lost, or that arrived late because a job
changed owners, is repaired by the next scan. Nothing else guarantees delivery.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from sqlalchemy import Engine

from perdure.controller.nodes.connection import Connection
from perdure.controller.nodes.connection_records import ConnectionRecords
from perdure.controller.nodes.session import NodeSessions
from perdure.controller.reconcile.inbox import ReconcilerInbox
from perdure.controller.reconcile.work_items import find_attempt
from perdure.controller.runtime.keys import AttemptKey
from perdure.controller.store.records import jobs, peer_messages
from perdure.recovery import events
from perdure.recovery.directive import STOP, directive_for
from perdure.recovery.job import AttemptView
from perdure.recovery.statuses import NodePhase

_PHASE_ORDER = {phase: order for order, phase in enumerate(NodePhase)}

# Delivering a report takes a while: it is sent again only after this long.
_RESEND_AFTER_S = 3.0
_MAX_BACKLOG = 100  # with more events in the queue, reports may not have left this daemon yet
_UNREAD_S = 60.0  # an older message may be one that its reader cannot decode


@dataclass(frozen=True)
class Resync:
    """Resynchronizes nodes and jobs. Every method raises what the database raises."""

    database: Engine
    inbox: ReconcilerInbox
    sessions: NodeSessions
    presence: ConnectionRecords
    monotonic: Callable[[], float] = time.monotonic

    def resync_nodes(self, jobs: Collection[int] | None = None) -> None:
        """Compare the nodes connected here, of `jobs` or all of them, with the database.

        A node with an outdated directive gets the current one. If the recorded state of a node is older than its last
        report, the owner of its job gets the report again.
        """
        connected = self.sessions.connections()
        if jobs is None:
            self.presence.prune_except(connection.session_id for connection in connected)
        elif not (connected := [connection for connection in connected if connection.place[0][0] in jobs]):
            return
        attempts = self._attempts({c.place[0] for c in connected})
        behind = []
        for connection in connected:
            attempt = attempts.get(connection.place[0])
            wanted = directive_for(attempt) if attempt else STOP
            if wanted != connection.last_directive:
                self.sessions.push_directive(connection.place[0], wanted)
            if attempt is not None and connection.acknowledges(wanted) and self._is_behind(attempt, connection):
                behind.append(connection)
        if self.inbox.backlog() > _MAX_BACKLOG:
            return
        unread = self._unread({c.place[0][0] for c in behind})
        for connection in behind:
            if connection.place[0][0] not in unread and connection.report is not None:
                self.sessions.deliver_report(connection, connection.report)

    def report_silent(self, jobs: Collection[int] | None = None) -> None:
        """Report as disconnected the nodes that are recorded as connected and that no daemon has a connection with.

        Of this daemon's jobs: of `jobs`, or of all.
        """
        if jobs is not None and not jobs:
            return
        for (job_id, task, generation), rank in self.presence.disconnected_nodes(jobs):
            self.inbox.post(job_id, events.NodeDisconnected(task, generation, rank))

    def _attempts(self, keys: set[AttemptKey]) -> dict[AttemptKey, AttemptView]:
        """The recorded live attempts: from memory for this daemon's own jobs, else from the database.

        An attempt that memory does not know is looked up too. A daemon that was cut off from the database believes for
        a while that jobs are its own; another one has launched attempts since, which must not be stopped for that.
        """
        views = {job_id: self.inbox.view(job_id) for job_id in {key[0] for key in keys}}
        own = {key: attempt for key in keys if (attempt := find_attempt(views[key[0]], key)) is not None}
        elsewhere = sorted({job_id for job_id, *_ in keys - own.keys()})
        if not elsewhere:
            return own
        with self.database.connect() as conn:
            return {**jobs.load_attempts(conn, elsewhere), **own}

    def _unread(self, jobs: Collection[int]) -> set[int]:
        """Those of `jobs` that have unread messages: the report may be in one of them."""
        if not jobs:
            return set()
        with self.database.connect() as conn:
            return peer_messages.jobs_with_messages(conn, jobs, self.presence.clock.now() - _UNREAD_S)

    def _is_behind(self, attempt: AttemptView, connection: Connection) -> bool:
        """Whether the recorded state of the node is older than its last report here."""
        report, rank = connection.report, connection.place[1]
        if report is None or rank >= len(attempt.nodes) or attempt.nodes[rank].gone_reason is not None:
            return False
        node = attempt.nodes[rank]
        is_newer = not node.connected or _PHASE_ORDER[report.phase] > _PHASE_ORDER[node.phase]
        return is_newer and self.monotonic() - connection.reported_at > _RESEND_AFTER_S
