"""What the controllers of one database share of services: who owns one, and what nodes and proxies report.

A service belongs to one controller, which decides about it and runs its proxy. When that one is dead, another one takes
the service over. A replica's node may be connected to any of them: its probe is recorded in the database. A controller
with a database of its own does none of this.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import structlog
from sqlalchemy import Connection, Engine, Row

from perdure.controller.maintenance.serve.proxy_state import ProxyReport
from perdure.controller.nodes.readiness import NodeReadiness
from perdure.controller.runtime.clock import Clock
from perdure.controller.runtime.keys import AttemptKey
from perdure.controller.store.records import agent_connections
from perdure.controller.store.records.agent_connections import Place
from perdure.controller.store.services import events, records
from perdure.recovery.market.services.replicas import Probe
from perdure.recovery.market.services.scale import Traffic

log = structlog.get_logger(__name__)

RESEND_S = 10.0
"""So long after, a probe is written again: the node's connection may have been recorded later than the probe."""
_PROBE_FIELDS = ("ready", "failing_since", "message", "revision", "running_since", "has_ended")
NO_OWNER = "no controller that has HAProxy runs its proxy now; one takes it over when the lease of the last one ends"


class ServiceSharing:
    """Of one controller, whose lease is `owner`. `alone`: no other one uses the database.

    `may_claim`: whether services may be taken over now. `why_no_proxy`: why this controller can run none, or None.
    """

    def __init__(
        self,
        database: Engine,
        clock: Clock,
        readiness: NodeReadiness,
        owner: str,
        *,
        alone: bool,
        may_claim: Callable[[], bool],
        why_no_proxy: Callable[[], str | None],
    ) -> None:
        self.owner = owner
        self.alone = alone
        self._database = database
        self._clock = clock
        self._readiness = readiness
        self._may_claim = may_claim
        self._why_no_proxy = why_no_proxy
        self._written: dict[AttemptKey, Probe] = {}
        self._rewrite_at = 0.0
        self._reports: dict[int, dict[str, Any]] = {}

    # --- owners -------------------------------------------------------------------------------------------

    def claim(self) -> None:
        """Take over the services of controllers that are dead. Raises what the database raises."""
        if self.alone or not self._may_claim() or self._why_no_proxy() is not None:
            return
        with self._database.begin() as conn:
            claimed = records.claim(conn, self.owner, self._clock.now())
            for service_id in claimed:
                events.add(conn, service_id, "service.taken_over", self._clock.now())
        if claimed:
            log.info("services.claimed", services=claimed)

    def owns(self, row: Row[Any]) -> bool:
        """Whether this controller decides about a service."""
        return self.alone or row.owner == self.owner

    @contextmanager
    def writing(self, service_id: int) -> Iterator[Connection]:
        """A transaction that changes a service of this controller. Raises ServiceLost if it is another one's."""
        with self._database.begin() as conn:
            if not self.alone:
                records.require_owner(conn, service_id, self.owner)
            yield conn

    # --- what is reported ---------------------------------------------------------------------------------

    def publishes(self, job_id: int) -> bool:
        """Whether another controller may wait for what the node of a job reports here. From any thread."""
        return not self.alone and self._readiness.has_report(job_id)

    def publish_probes(self) -> None:
        """Record what the nodes report that are connected here. Raises what the database raises."""
        if self.alone:
            return
        newest, now = self._readiness.all(), self._clock.now()
        if now >= self._rewrite_at:
            self._written, self._rewrite_at = {}, now + RESEND_S
        changed: dict[Place, dict[str, Any]] = {
            (key, 0): _of_probe(probe) for key, probe in newest.items() if self._written.get(key) != probe
        }
        if changed:
            with self._database.begin() as conn:
                agent_connections.set_probes(conn, changed, self.owner)
        self._written = newest

    def probes(self, conn: Connection, job_ids: Collection[int]) -> Mapping[AttemptKey, Probe]:
        """What the nodes of these jobs report that are connected to other controllers."""
        if self.alone:
            return {}
        rows = agent_connections.probes(conn, job_ids, self._clock.now())
        return {key: Probe(**{name: one[name] for name in _PROBE_FIELDS if name in one}) for key, one in rows.items()}

    def publish_reports(self, reports: Mapping[int, ProxyReport]) -> None:
        """Record what the proxies of this controller report, by service. Raises what the database raises."""
        if self.alone:
            return
        current = {service_id: _of_report(report) for service_id, report in reports.items()}
        changed = {id_: report for id_, report in current.items() if self._reports.get(id_) != report}
        for service_id, report in changed.items():
            with self.writing(service_id) as conn:
                records.change(conn, service_id, report=report)
        self._reports = current

    def reports(
        self, conn: Connection, rows: Sequence[Row[Any]], own: Callable[[int], ProxyReport]
    ) -> Mapping[int, ProxyReport]:
        """What the proxies of these services report. `own`: of one that this controller runs."""
        if all(self.owns(row) for row in rows):
            return {row.id: own(row.id) for row in rows}
        live = records.live_controllers(conn, self._clock.now())
        return {row.id: own(row.id) if self.owns(row) else _report_of(row, row.owner in live) for row in rows}

    def address_of(self, conn: Connection, row: Row[Any]) -> str:
        """Where the other controllers reach the one that owns a service; "" if it is this one, or none."""
        if self.owns(row):
            return ""
        return records.live_controllers(conn, self._clock.now()).get(row.owner, "")


def _of_probe(probe: Probe) -> dict[str, Any]:
    return {name: getattr(probe, name) for name in _PROBE_FIELDS}


def _of_report(report: ProxyReport) -> dict[str, Any]:
    return {
        "recent": report.traffic.recent,
        "in_flight": report.traffic.in_flight,
        "by_replica": {str(number): count for number, count in report.in_flight.items()},
        "problem": report.problem,
        "queued": report.queued,
        "held_since": None if report.held_since is None else round(report.held_since),  # steady while it is the oldest
    }


def _report_of(row: Row[Any], is_owned: bool) -> ProxyReport:
    """What another controller reports of its proxy. `is_owned`: that controller is alive."""
    if not is_owned:
        return ProxyReport(problem=NO_OWNER)
    one = row.report
    if one is None:
        return ProxyReport(problem="its proxy is being started")
    by_replica = {int(number): count for number, count in one["by_replica"].items()}
    traffic = Traffic(one["recent"], one["in_flight"])
    return ProxyReport(traffic, by_replica, one["problem"], one.get("queued", 0), one.get("held_since"))
