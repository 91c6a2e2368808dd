"""A daemon's round over the nodes: what the database says of them is compared with what their connections say.

Directives are levels, and so are reports. A message that was lost, or overtaken while a job changed hands, is made good
by the next round; nothing else has to make sure that it arrives.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from sqlalchemy import Engine

from perdure.controller.attendance import Attendance
from perdure.controller.channel import Channel
from perdure.controller.connection import Connection
from perdure.controller.keyring import AttemptKey
from perdure.controller.reconcile import Reconciler
from perdure.controller.store import jobs, letters
from perdure.controller.turns import attempt_of
from perdure.recovery import events
from perdure.recovery.directive import STOP, directive
from perdure.recovery.job import AttemptView
from perdure.recovery.statuses import NodePhase

_PHASE_ORDER = {phase: order for order, phase in enumerate(NodePhase)}

# A report is on its way for a while: it is said again only after this long.
_SAY_AGAIN_S = 3.0
_BUSY = 100  # so many wait to be taken here
_UNREAD_S = 60.0  # an older letter may be one that its reader does not understand


@dataclass(frozen=True)
class Rounds:
    """Every method raises what the database raises."""

    database: Engine
    reconciler: Reconciler
    channel: Channel
    attendance: Attendance
    monotonic: Callable[[], float] = time.monotonic

    def nodes(self, jobs: Collection[int] | None = None) -> None:
        """Nodes connected here, of `jobs` or of all: each has its directive, and its job's owner has its report."""
        connected = self.channel.connections()
        if jobs is None:
            self.attendance.hold_only(connection.token for connection in connected)
        elif not (connected := [connection for connection in connected if connection.place[0][0] in jobs]):
            return
        attempts = self._attempts({c.place[0] for c in connected})
        behind = []
        for connection in connected:
            attempt = attempts.get(connection.place[0])
            wanted = directive(attempt) if attempt else STOP
            if wanted != connection.told:
                self.channel.push(connection.place[0], wanted)
            if attempt is not None and connection.answers(wanted) and self._is_behind(attempt, connection):
                behind.append(connection)
        if self.reconciler.backlog() > _BUSY:
            return  # what is on its way may not have left this daemon yet
        unread = self._unread({c.place[0][0] for c in behind})
        for connection in behind:
            if connection.place[0][0] not in unread and connection.report is not None:
                self.channel.pass_on(connection, connection.report)

    def silences(self, jobs: Collection[int] | None = None) -> None:
        """Nodes of this daemon's jobs, of `jobs` or of all, that count as connected, and that no daemon has: they are
        silent."""
        if jobs is not None and not jobs:
            return
        for (job_id, task, generation), rank in self.attendance.silent(jobs):
            self.reconciler.tell(job_id, events.NodeSilent(task, generation, rank))

    def _attempts(self, keys: set[AttemptKey]) -> dict[AttemptKey, AttemptView]:
        """What is recorded of live attempts: from memory for this daemon's own jobs, else from the database."""
        views = {job_id: self.reconciler.view(job_id) for job_id in {key[0] for key in keys}}
        elsewhere = [job_id for job_id, view in views.items() if view is None]
        own = {key: attempt for key in keys if (attempt := attempt_of(views[key[0]], key)) is not None}
        if not elsewhere:
            return own
        with self.database.connect() as conn:
            return {**jobs.load_attempts(conn, elsewhere), **own}

    def _unread(self, jobs: Collection[int]) -> set[int]:
        """Those of `jobs` whose owner has letters to read: what was said may be among them."""
        if not jobs:
            return set()
        with self.database.connect() as conn:
            return letters.addressed(conn, jobs, self.attendance.clock.now() - _UNREAD_S)

    def _is_behind(self, attempt: AttemptView, connection: Connection) -> bool:
        """Whether what is recorded of the node is older than what it said here."""
        report, rank = connection.report, connection.place[1]
        if report is None or rank >= len(attempt.nodes) or attempt.nodes[rank].gone is not None:
            return False
        node = attempt.nodes[rank]
        is_newer = not node.connected or _PHASE_ORDER[NodePhase(report["phase"])] > _PHASE_ORDER[node.phase]
        return is_newer and self.monotonic() - connection.passed_on_at > _SAY_AGAIN_S
