"""Writes what nodes have reported into their series in the database, some nodes at a time (ADR 32)."""

from __future__ import annotations

from collections.abc import Mapping

import structlog
from sqlalchemy import Engine

from perdure.controller.runtime.clock import Clock
from perdure.controller.store.engine.database import UNAVAILABLE
from perdure.controller.store.logs.series import node_metrics
from perdure.controller.store.logs.series.metric_series import merged
from perdure.controller.store.logs.series.pending_metrics import PendingMetrics, Points
from perdure.controller.store.records.agent_connections import Place

log = structlog.get_logger(__name__)

TICK_S = 2.0
BATCH_SIZE = 100
"""Nodes written in one transaction: 10,000 nodes every five minutes are 67 in each tick."""


class NodeMetricsWriter:
    """Ticked every `TICK_S`. What cannot be written is kept, and written later."""

    def __init__(self, pending: PendingMetrics, database: Engine, clock: Clock) -> None:
        self._pending = pending
        self._database = database
        self._clock = clock

    def tick(self) -> None:
        """Write the nodes that are due, at most a batch. Raises nothing: errors are logged."""
        self._write(self._pending.due(BATCH_SIZE))

    def write_all(self) -> None:
        """Write all that is left, because this controller ends; of many nodes, only as long as no write fails."""
        while (left := self._pending.due(BATCH_SIZE, all_nodes=True)) and self._write(left):
            pass

    def _write(self, due: Mapping[Place, Points]) -> bool:
        if not due:
            return True
        now = self._clock.now()
        try:
            with self._database.connect() as conn:
                stored = node_metrics.load(conn, list(due))
            # Outside of the transaction: other writers do not wait for it.
            rows = [
                node_metrics.encoded_row(place, merged(stored.get(place), points), now) for place, points in due.items()
            ]
            with self._database.begin() as conn:
                node_metrics.save_all(conn, rows)
        except UNAVAILABLE as error:
            log.warning("node_metrics.not_written", nodes=len(due), error=str(error))
            return False
        self._pending.written({place: len(points) for place, points in due.items()})
        return True
