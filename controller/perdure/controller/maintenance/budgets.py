"""Watches the budgets of users: warns at 80 % of one, and at 100 % says so, and ends what it says should end.

What refuses new jobs is in `submit.service`, and what holds back those that wait in `execute.quotas`: both read what is
marked here.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from time import monotonic
from typing import Any

import structlog
from sqlalchemy import Connection, Engine, Row

from perdure.controller.runtime.clock import Clock
from perdure.controller.runtime.config.notify_config import NotifyConfig
from perdure.controller.store.access import audit, budgets, users
from perdure.controller.store.access.audit import Actor, Deed
from perdure.controller.store.queries import search
from perdure.controller.store.queries.search import Filter
from perdure.controller.store.records import clusters, notifications
from perdure.controller.store.services import records as service_records
from perdure.controller.submit.cluster.clusters import ClusterService
from perdure.controller.submit.errors import RequestRejected
from perdure.controller.submit.serve.services import ServiceRequests

log = structlog.get_logger(__name__)

INTERVAL_S = 30.0
_REST_FACTOR = 20.0  # adding up takes a twentieth of the time at most: a million jobs in a month take seconds
_CONTROLLER = Actor("controller")


@dataclass
class BudgetWatch:
    """For one daemon. Several may run on one database: each step is reported by the first."""

    database: Engine
    clock: Clock
    notify: NotifyConfig
    controller: str  # the id of this installation
    wake: Callable[[], None]  # is called after something was queued for sending
    cancel: Callable[[Sequence[int], float | None], None]
    clusters: ClusterService
    services: ServiceRequests
    timer: Callable[[], float] = monotonic
    _rest_until: float = float("-inf")

    def tick(self) -> None:
        """Compare what users have spent with their budgets, unless the last time took too long to do it again already.
        Raises what the database raises."""
        began = self.timer()
        if began < self._rest_until:
            return
        try:
            self._compare()
        finally:
            self._rest_until = began + _REST_FACTOR * (self.timer() - began)

    def _compare(self) -> None:
        now = self.clock.now()
        month = budgets.month_of(now)
        with self.database.connect() as conn:
            rows = users.budgeted(conn)
            amounts = budgets.spent(conn, [row.name for row in rows], now)
        for row in rows:
            usd = amounts[row.name]
            if usd >= row.budget_usd:
                if self._report(row, "spent_month", month, usd, now) and row.budget_action == users.END:
                    self._end_all(row.name)
            elif row.spent_month == month:
                with self.database.begin() as conn:
                    budgets.unmark(conn, row.name, month)
            if budgets.WARNING_SHARE * row.budget_usd <= usd < row.budget_usd:
                self._report(row, "warned_month", month, usd, now)

    def _report(self, user: Row[Any], column: str, month: str, usd: float, now: float) -> bool:
        """Mark a step, and queue its notifications in the same transaction. False if it was reported before."""
        if getattr(user, column) == month:
            return False
        kind = "user.budget_spent" if column == "spent_month" else "user.budget_warning"
        with self.database.begin() as conn:
            if not budgets.mark(conn, user.name, column, month):
                return False
            detail = {"month": month, "spent_usd": round(usd, 2), "budget_usd": user.budget_usd}
            audit.record(conn, Deed(_CONTROLLER, kind, f"user {user.name}", detail=detail), now)
            self._queue(conn, kind, user, month, usd, now)
        log.info(kind, user=user.name, **detail)
        self.wake()
        return True

    def _queue(self, conn: Connection, kind: str, user: Row[Any], month: str, usd: float, now: float) -> None:
        identity = f"{self.controller}/{user.name}/{kind}/{month}/{user.budget_usd!r}"
        then = ""
        if kind == "user.budget_spent":
            ends = user.budget_action == users.END
            then = "; new jobs are refused, and running ones " + ("save their work and end" if ends else "go on")
        share = usd / user.budget_usd if user.budget_usd else 1.0
        body = {
            "id": f"evt_{hashlib.sha256(identity.encode()).hexdigest()[:24]}",
            "type": kind,
            "version": 1,
            "timestamp": datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "data": {
                "user": user.name,
                "month": month,
                "spent_usd": round(usd, 4),
                "budget_usd": user.budget_usd,
                "message": f"{user.name} has spent {usd:.2f} of {user.budget_usd:g} USD in {month} ({share:.0%}){then}",
            },
        }
        rules = (rule for rule in self.notify.rules if rule.matches(kind, user=user.name, name=""))
        channels = dict.fromkeys(channel for rule in rules for channel in rule.to)
        columns = {"event_id": body["id"], "kind": kind, "job_id": None, "at": now, "body": body}
        notifications.add_all(conn, [{**columns, "channel": channel} for channel in channels])

    def _end_all(self, user: str) -> None:
        """Cancel the unfinished jobs of a user, with the usual time to save, stop the user's clusters, and end the
        user's services."""
        with self.database.connect() as conn:
            job_ids = search.find_ids(conn, Filter(limit=None, skip_finished=True, user=user))
            names = [row.name for row in clusters.active(conn) if row.user == user and row.wanted == clusters.UP]
            serving = [row.name for row in service_records.active(conn) if row.user == user]
        if job_ids:
            self.cancel(job_ids, None)
        for name in names:
            try:
                self.clusters.stop(name, cause="budget", of=user)
            except RequestRejected as error:  # the user has taken it down meanwhile
                log.info("budget.cluster_gone", cluster=name, error=str(error))
        for name in serving:
            try:
                self.services.down(name, of=user)
            except RequestRejected as error:
                log.info("budget.service_gone", service=name, error=str(error))
