"""Loads services as `recovery.market.services` sees them: from the database, and what nodes and proxies report."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog
from sqlalchemy import Connection, Row

from perdure.controller.maintenance.serve.proxy_state import ProxyReport
from perdure.controller.nodes.readiness import NodeReadiness
from perdure.controller.runtime.keys import AttemptKey
from perdure.controller.store.services import records
from perdure.controller.store.services.records import StoredReplica
from perdure.controller.submit.serve.replica_tasks import spec_of
from perdure.recovery.market.services.plan import ServiceView, UpdateMode
from perdure.recovery.market.services.replicas import Probe, Replica, ReplicaStatus
from perdure.recovery.market.services.scale import ScaleState
from perdure.recovery.reasons import Reason
from perdure.recovery.statuses import AttemptState, Status

log = structlog.get_logger(__name__)

_TASK = 0  # a replica has one task
_MAX_WEIGHT = 256
_WITHOUT_MACHINE = (AttemptState.REQUESTED, AttemptState.GONE)


@dataclass(frozen=True)
class ReadReplica:
    """A replica as it is stored, and as decisions see it."""

    stored: StoredReplica
    view: Replica

    @property
    def attempt(self) -> AttemptKey | None:
        """The newest attempt of its job."""
        attempt = self.stored.attempt
        return None if attempt is None else (attempt.job_id, _TASK, attempt.generation)


@dataclass(frozen=True)
class ReadService:
    """A service. `replicas`: those that are not over."""

    row: Row[Any]
    versions: Mapping[int, Row[Any]]
    replicas: Sequence[ReadReplica]
    view: ServiceView
    report: ProxyReport

    def prices(self) -> dict[str, float]:
        """What its machines cost now, in USD per hour, by market."""
        by_market: dict[str, float] = {}
        for one in self.replicas:
            offer = one.stored.offer
            if offer and one.view.attempt_state not in _WITHOUT_MACHINE:
                by_market[offer["market"]] = by_market.get(offer["market"], 0.0) + offer["price_per_hour"]
        return by_market

    @property
    def newest(self) -> Row[Any]:
        """The newest version."""
        return self.versions[self.row.version]

    def weight_of(self, one: ReadReplica) -> int:
        """The share of requests of a replica, where the policy is by accelerator."""
        policy = self.view.spec.policy
        if not isinstance(policy.target_qps, dict):
            return 100
        qps = policy.qps_of(one.view.accelerator) or 0.0
        return max(1, round(_MAX_WEIGHT * qps / max(policy.target_qps.values())))


@dataclass(frozen=True)
class ServiceReader:
    """Reads services of this daemon. From any thread."""

    readiness: NodeReadiness
    #: What the proxies of services report.
    reports: Callable[[Connection, Sequence[Row[Any]]], Mapping[int, ProxyReport]]
    #: What nodes report that are connected to other controllers, of these jobs.
    probes: Callable[[Connection, Collection[int]], Mapping[AttemptKey, Probe]]

    def load(self, conn: Connection, rows: Sequence[Row[Any]]) -> list[ReadService]:
        """The services of these rows, but those that cannot be read: others must not depend on what is wrong there."""
        ids = [row.id for row in rows]
        if not ids:
            return []
        versions, stored, reports = records.versions(conn, ids), records.replicas(conn, ids), self.reports(conn, rows)
        jobs = [one.row.job_id for of_one in stored.values() for one in of_one if one.row.job_id is not None]
        elsewhere = self.probes(conn, jobs)
        services = []
        for row in rows:
            try:
                one = self._service(conn, row, versions, stored.get(row.id, ()), reports[row.id], elsewhere)
            except (LookupError, TypeError, ValueError):  # such as what another version of Perdure has written
                log.exception("service.unreadable", service=row.name)
            else:
                services.append(one)
        return services

    def _replica(self, stored: StoredReplica, in_flight: int, elsewhere: Mapping[AttemptKey, Probe]) -> ReadReplica:
        """A replica with what its node reports."""
        row, attempt = stored.row, stored.attempt
        key = None if attempt is None else (attempt.job_id, _TASK, attempt.generation)
        accelerators = stored.offer.get("accelerators")
        view = Replica(
            number=row.number,
            version=row.version,
            is_spot=row.is_spot,
            created_at=row.created_at,
            job_status=Status(row.status) if row.status else None,
            outcome=Reason(row.outcome) if row.outcome else None,
            message=row.job_message or "",
            attempt_state=AttemptState(attempt.state) if attempt is not None else None,
            running_at=attempt.running_at if attempt is not None else None,
            probe=(self.readiness.newest(key) or elsewhere.get(key)) if key is not None else None,
            was_ready=row.ready_at is not None,
            retired_as=ReplicaStatus(row.retired_as) if row.retired_as else None,
            in_flight=in_flight,
            accelerator=f"{accelerators[0]}:{accelerators[1]:g}" if accelerators else None,
            zone=stored.offer.get("zone"),
        )
        return ReadReplica(stored, view)

    def _service(
        self,
        conn: Connection,
        row: Row[Any],
        versions: Mapping[tuple[int, int], Row[Any]],
        stored: Sequence[StoredReplica],
        report: ProxyReport,
        elsewhere: Mapping[AttemptKey, Probe],
    ) -> ReadService:
        own = {number: version for (service_id, number), version in versions.items() if service_id == row.id}
        newest = own[row.version]
        read = [self._replica(one, report.in_flight.get(one.row.number, 0), elsewhere) for one in stored]
        since = newest.ready_at if newest.ready_at is not None else newest.created_at
        failures, failed_at = records.failures(conn, row.id, row.version, since)
        view = ServiceView(
            spec=spec_of(newest.section, uses_spot=newest.uses_spot),
            version=row.version,
            scale=ScaleState(row.target, row.above_since, row.below_since),
            replicas=tuple(one.view for one in read),
            mode=UpdateMode(row.mode),
            was_ready=newest.ready_at is not None,
            failures=failures,
            failed_at=failed_at,
        )
        return ReadService(row, own, read, view, report)
