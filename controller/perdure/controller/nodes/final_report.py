"""Holds back what nodes report: no node may send more events than the reconciler records, and the final report of a
node waits until everything that the node sent before it is stored.

The controller ends a node's machine once it acts on the report `ended`. So that report is delivered when the log bytes
and checkpoint messages that it announces have arrived, or when nothing more of them has arrived for a while: the
outcome of the job matters more than the rest of its log.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from weakref import WeakValueDictionary

from perdure.controller.nodes.connection import Connection
from perdure.controller.nodes.frames import HelloFrame, NodeReport, ReportFrame
from perdure.controller.reconcile.inbox import ReconcilerInbox
from perdure.controller.reconcile.work_items import JobEvent
from perdure.controller.store.records.agent_connections import Place
from perdure.recovery import events
from perdure.recovery.statuses import NodePhase

_MAX_UNRECORDED = 8  # an honest node sends no more reports in its whole life


@dataclass(frozen=True, eq=False)
class PendingFinalReport:
    """A report `ended` that was received before the end of the log, or before the last checkpoint message."""

    connection: Connection  # the newest connection of the node
    report: NodeReport
    log_size: int  # the size of the node's whole log, in bytes
    seq: int  # the number of the node's last checkpoint message
    stored_bytes: int  # how much of the log is stored

    @property
    def is_complete(self) -> bool:
        return self.log_size <= self.stored_bytes and self.seq <= self.connection.received_seq


class FinalReports:
    """The final reports that are held back."""

    def __init__(
        self,
        deliver: Callable[[Connection, NodeReport], None],
        *,
        wait_s: float,
        had_outage_within: Callable[[float], bool],
    ) -> None:
        """`wait_s`: deliver an incomplete report when nothing more of it has arrived for this long.

        `had_outage_within`: whether the database was unavailable within the last seconds given.
        """
        self._deliver = deliver
        self._wait_s = wait_s
        self._had_outage_within = had_outage_within
        self._pending: dict[Place, PendingFinalReport] = {}

    def __contains__(self, place: Place) -> bool:
        return place in self._pending

    def add(self, connection: Connection, report: NodeReport, frame: HelloFrame | ReportFrame) -> None:
        """Deliver `report` as soon as it is complete. On the event loop. `frame`: the one that it came in."""
        pending = PendingFinalReport(
            connection, report, frame.logs.size, frame.checkpoints.seq, connection.stored_bytes
        )
        self._pending[connection.place] = pending
        self.on_progress(connection)

    def on_progress(self, connection: Connection) -> None:
        """Deliver the node's report if it is complete now; otherwise restart its timer. On the event loop."""
        if (previous := self._pending.get(connection.place)) is None:
            return
        # A new object, so that the timer of the previous one has no effect.
        stored_bytes = max(previous.stored_bytes, connection.stored_bytes)
        pending = replace(previous, connection=connection, stored_bytes=stored_bytes)
        self._pending[connection.place] = pending
        if pending.is_complete:
            self._release(pending)
        else:
            self._start_timer(pending)

    def release(self, place: Place) -> None:
        """Deliver the node's report as it is, if there is one: nothing more will arrive. From any thread."""
        pending = self._pending.get(place)
        if pending is not None:
            self._release(pending)

    def _start_timer(self, pending: PendingFinalReport) -> None:
        asyncio.get_running_loop().call_later(self._wait_s, self._on_timeout, pending)

    def _on_timeout(self, pending: PendingFinalReport) -> None:
        """While the database was unavailable, the node could not send the rest: its time starts again."""
        if self._pending.get(pending.connection.place) is pending and self._had_outage_within(self._wait_s):
            self._start_timer(pending)
        else:
            self._release(pending)

    def _release(self, pending: PendingFinalReport) -> None:
        place = pending.connection.place
        if self._pending.get(place) is pending and self._pending.pop(place, None) is pending:
            self._deliver(pending.connection, pending.report)


@dataclass(slots=True)
class _Unrecorded:
    """What of a node is not recorded yet: the number of its events that the reconciler has, and those held back."""

    count: int = 0
    is_disconnected: bool = False  # by the last of those events
    notice: events.PreemptionNotice | None = None
    report: events.NodeReported | None = None

    def hold_report(self, report: events.NodeReported) -> None:
        """A report is a whole snapshot, so the newest one is enough. Nothing follows the final one."""
        if self.report is None or self.report.phase is not NodePhase.ENDED or report.phase is NodePhase.ENDED:
            self.report = report

    def hold_notice(self, notice: events.PreemptionNotice) -> None:
        """The earliest deadline counts."""
        if self.notice is None or notice.deadline < self.notice.deadline:
            self.notice = notice

    def pop_held(self) -> events.PreemptionNotice | events.NodeReported | None:
        """Remove and return what was held back and is next."""
        if self.notice is not None:
            notice, self.notice = self.notice, None
            return notice
        report, self.report = self.report, None
        return report


class NodeEvents:
    """Passes reports, notices and disconnects of nodes on to the reconciler, of each node a limited number at a time:
    a node may send them faster than they can be recorded. From any thread."""

    def __init__(self, inbox: ReconcilerInbox) -> None:
        self._inbox = inbox
        self._lock = threading.Lock()  # also while an event is queued: events of a node must stay in order
        self._nodes: dict[Place, _Unrecorded] = {}
        self._inflight_checkpoints: WeakValueDictionary[Place, asyncio.Semaphore] = WeakValueDictionary()

    def inflight_checkpoints(self, connection: Connection) -> asyncio.Semaphore:
        """Bounds the checkpoints of a node that are not recorded: those of its earlier connections count, too."""
        return self._inflight_checkpoints.setdefault(connection.place, connection.inflight_checkpoints)

    def report(self, place: Place, event: events.NodeReported) -> None:
        with self._lock:
            node = self._nodes.setdefault(place, _Unrecorded())
            if node.count >= _MAX_UNRECORDED:
                return node.hold_report(event)
            recorded = self._submit(place, node, event)
        self._follow(place, recorded)

    def notice(self, place: Place, event: events.PreemptionNotice) -> None:
        with self._lock:
            node = self._nodes.setdefault(place, _Unrecorded())
            if node.count >= _MAX_UNRECORDED:
                return node.hold_notice(event)
            recorded = self._submit(place, node, event)
        self._follow(place, recorded)

    def drop_held_report(self, place: Place) -> None:
        """The node's connection has ended: a report that was held back is out of date, unless it is the final one."""
        with self._lock:
            node = self._nodes.get(place)
            if node is not None and node.report is not None and node.report.phase is not NodePhase.ENDED:
                node.report = None

    def disconnected(self, place: Place, event: events.NodeDisconnected) -> None:
        """Pass the event on, unless an equal one is on its way and nothing has followed it."""
        with self._lock:
            node = self._nodes.setdefault(place, _Unrecorded())
            if node.is_disconnected:
                return
            recorded = self._submit(place, node, event)
            node.is_disconnected = True
        self._follow(place, recorded)

    def _submit(self, place: Place, node: _Unrecorded, event: events.Event) -> Future[None]:
        """The caller holds the lock."""
        recorded = self._inbox.submit(JobEvent(place[0][0], event))
        node.count += 1
        node.is_disconnected = False
        return recorded

    def _follow(self, place: Place, recorded: Future[None]) -> None:
        recorded.add_done_callback(lambda _: self._on_recorded(place))

    def _on_recorded(self, place: Place) -> None:
        with self._lock:
            node = self._nodes[place]
            node.count -= 1
            held = node.pop_held()
            if held is None:
                if not node.count:
                    del self._nodes[place]
                return
            recorded = self._submit(place, node, held)
        self._follow(place, recorded)
