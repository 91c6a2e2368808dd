"""What follows from recorded decisions besides their actions: metrics and notifications."""

from __future__ import annotations

from collections.abc import Sequence

import structlog
from sqlalchemy import Connection

from perdure.controller.reconcile.recorder import Decision
from perdure.controller.reconcile.reports.job_metrics import JobMetrics
from perdure.controller.reconcile.reports.notification_outbox import NotificationOutbox
from perdure.controller.store.engine.database import UNAVAILABLE

log = structlog.get_logger(__name__)


class DecisionReports:
    """The `DecisionObserver` of a daemon. `notifications`: None if nothing is ever sent."""

    def __init__(self, job_metrics: JobMetrics, notifications: NotificationOutbox | None = None) -> None:
        self.job_metrics = job_metrics
        self._notifications = notifications
        self._has_queued = False
        self._failure: Exception | None = None

    def on_recording(self, conn: Connection, decisions: Sequence[Decision], now: float) -> None:
        """In the transaction that records these decisions. Raises what the database raises."""
        self._has_queued, self._failure = False, None
        try:
            self._has_queued = self._notifications is not None and self._notifications.record(conn, decisions, now)
        except UNAVAILABLE:
            raise
        except Exception as error:  # noqa: BLE001 - a bug: it costs a notification, and not the decision
            self._failure = error

    def on_transaction(self, seconds: float) -> None:
        """That transaction is committed; it took `seconds`."""
        if self._failure is not None:  # logged late: formatting a traceback takes long for an open transaction
            log.error("notifications.failed", exc_info=self._failure)
        if self._has_queued and self._notifications is not None:
            self._notifications.wake()
        self.job_metrics.on_transaction(seconds)

    def on_recorded(self, decision: Decision, now: float) -> None:
        """After `on_transaction`, for each of its decisions."""
        self.job_metrics.on_recorded(decision, now)
