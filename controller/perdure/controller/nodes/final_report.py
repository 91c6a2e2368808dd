"""Holds back the final report of a node until everything that the node sent before it is stored.

The controller ends a node's machine once it acts on the report `ended`. So that report is delivered when the log bytes
and checkpoint messages that it announces have arrived, or when nothing more of them has arrived for a while: the
outcome of the job matters more than the rest of its log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace

from perdure.controller.nodes.connection import Connection
from perdure.controller.nodes.frames import HelloFrame, NodeReport, ReportFrame
from perdure.controller.store.records.agent_connections import Place


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
