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
BRIEF_SILENCE_S = 15.0
"""So long, a replica whose node is silent counts as one that is there: the node may have to find its controller."""
LASTING_S = 60.0
"""So long must a replica be ready to end a row of failures: one that crashes in its first minute is one of them."""
_WITHOUT_MACHINE = (AttemptState.REQUESTED, AttemptState.GONE)


class SilenceClock:
    """Remembers since when the nodes of replicas are silent. `now`: the controller's clock."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self._since: dict[AttemptKey, float] = {}

    def is_short(self, key: AttemptKey, *, is_connected: bool) -> bool:
        """Whether a node that is not connected has been so for a moment alone. From any thread."""
        if is_connected:
            self._since.pop(key, None)
            return False
        return self.now() - self._since.setdefault(key, self.now()) < BRIEF_SILENCE_S

    def has_lasted(self, key: AttemptKey, seconds: float) -> bool:
        """Whether a node has not been connected for so long."""
        since = self._since.get(key)
        return since is not None and self.now() - since >= seconds

    def keep(self, keys: Collection[AttemptKey | None]) -> None:
        """Forget all others."""
        for key in self._since.keys() - keys:
            self._since.pop(key, None)


@dataclass(frozen=True)
class ReadReplica:
    """A replica as it is stored, and as decisions see it."""

    stored: StoredReplica
    view: Replica
    #: The revision that its node runs, if the database does not know of it: it is that of an older backup.
    unknown_revision: int | None = None

    @property
    def attempt(self) -> AttemptKey | None:
        """The newest attempt of its job."""
        attempt = self.stored.attempt
        return None if attempt is None else (attempt.job_id, _TASK, attempt.generation)


@dataclass(frozen=True)
class ReadService:
    """A service. `replicas`: those that are not over. `failures`: of the newest version, in a row.

    `view`: of the version that its replicas shall have: the newest one, or the one before if that cannot start.
    """

    row: Row[Any]
    versions: Mapping[int, Row[Any]]
    replicas: Sequence[ReadReplica]
    view: ServiceView
    report: ProxyReport
    failures: int = 0

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

    @property
    def has_failed(self) -> bool:
        """The newest version cannot start: it has failed before it was ever ready."""
        return self.newest.ready_at is None and self.failures > 0

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
    #: Whether replicas of one version of a service can become those of another one on their machines.
    may_reuse: Callable[[Row[Any], Row[Any]], bool]
    silence: SilenceClock

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
        reported = (self.readiness.newest(key) or elsewhere.get(key)) if key is not None else None
        revision = (reported.revision or 0) if reported is not None else row.revision
        probe = reported if revision == row.revision else None
        is_briefly_silent = key is not None and self.silence.is_short(key, is_connected=reported is not None)
        running_at = attempt.running_at if attempt is not None else None
        if row.revision:  # what was launched first has started long ago
            running_at = probe.running_since if probe is not None else None
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
            running_at=running_at,
            probe=probe,
            was_ready=row.ready_at is not None,
            changes_to=row.changes_to,
            was_changed=row.revision > 0,
            is_briefly_silent=is_briefly_silent,
            retired_as=ReplicaStatus(row.retired_as) if row.retired_as else None,
            in_flight=in_flight,
            accelerator=f"{accelerators[0]}:{accelerators[1]:g}" if accelerators else None,
            zone=stored.offer.get("zone"),
        )
        return ReadReplica(stored, view, revision if revision > row.revision else None)

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
        now = self.silence.now()
        failures, failed_at = _failures(conn, newest, now)
        has_failed = newest.ready_at is None and failures > 0
        earlier = max((one for one in own.values() if one.ready_at and one is not newest), key=_number, default=None)
        version = newest
        if has_failed and earlier is not None:
            version, (of_version, at) = earlier, _failures(conn, earlier, now)
        else:
            of_version, at = failures, failed_at
        others = {one.row.version for one in stored} - {version.version}
        view = ServiceView(
            spec=spec_of(version.section, uses_spot=version.uses_spot),
            version=version.version,
            scale=ScaleState(row.target, row.above_since, row.below_since),
            replicas=tuple(one.view for one in read),
            mode=UpdateMode(row.mode),
            was_ready=version.ready_at is not None,
            failures=of_version,
            failed_at=at,
            reusable=frozenset(one for one in others if self.may_reuse(own[one], version)),
            can_return=version is newest and earlier is not None and self.may_reuse(newest, earlier),
        )
        return ReadService(row, own, read, view, report, failures)


def _failures(conn: Connection, version: Row[Any], now: float) -> tuple[int, float | None]:
    """How many replicas have failed since one of a version was last ready for long, and when the last of them did."""
    ready_at = records.lasting_ready_at(conn, version.service_id, version.version, LASTING_S, now)
    since = ready_at if ready_at is not None else version.created_at
    count, at = records.failures(conn, version.service_id, version.version, since)
    if version.failed_at is not None and version.failed_at > since:
        return count + 1, max(at or 0.0, version.failed_at)
    return count, at


def _number(version: Row[Any]) -> int:
    return int(version.version)
