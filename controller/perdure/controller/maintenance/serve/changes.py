"""Gives replicas another version of their service on their machines.

The decision is recorded, the replica answers its last requests, and then the task of its job is replaced. The
controller sends the number of the new revision to the node until the node runs it. So if the controller dies at any
point, the replica has either the old version or the new one.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog
from sqlalchemy import Connection, Engine

from perdure.controller.maintenance.serve.reader import ReadReplica, ReadService
from perdure.controller.maintenance.serve.shared_state import ServiceSharing
from perdure.controller.maintenance.serve.timeline import ServiceTimeline
from perdure.controller.nodes.frames import MAX_REVISION
from perdure.controller.nodes.readiness import NodeReadiness
from perdure.controller.runtime.failpoints import failpoint
from perdure.controller.store.services import changes, records
from perdure.controller.submit.errors import RequestRejected
from perdure.controller.submit.serve.services import ServiceRequests
from perdure.recovery.market.services.plan import ServicePlan

log = structlog.get_logger(__name__)

MIN_DRAIN_S, MAX_DRAIN_S = 1.0, 600.0
"""How long a replica that leaves the rotation answers its requests: at least until the proxy knows, at most so long."""


def has_drained(one: ReadReplica, since: float, now: float) -> bool:
    """Whether a replica that left the rotation at `since` has answered its requests, or had the time for that."""
    drained_s = now - since
    is_idle = not one.view.was_ready or (drained_s >= MIN_DRAIN_S and not one.view.in_flight)
    return is_idle or drained_s >= MAX_DRAIN_S


class ReplicaChanges:
    """Of one controller. Every method raises what the database raises, and ServiceLost. `wake`: evaluate at once."""

    def __init__(
        self,
        database: Engine,
        requests: Callable[[], ServiceRequests],
        readiness: NodeReadiness,
        sharing: ServiceSharing,
        timeline: ServiceTimeline,
        wake: Callable[[], None],
    ) -> None:
        self._database = database
        self._requests = requests
        self._readiness = readiness
        self._sharing = sharing
        self._timeline = timeline
        self._wake = wake

    @staticmethod
    def is_due(service: ReadService, plan: ServicePlan) -> bool:
        """Whether the plan says something that is not recorded yet."""
        return bool(plan.failures) or any(
            one.view.changes_to != _version_of(one, plan, service.view.version) for one in service.replicas
        )

    def record(
        self, conn: Connection, service: ReadService, plan: ServicePlan, causes: dict[int, str], now: float
    ) -> None:
        """Write down which replicas change. `causes`: why the version could not start, by replica."""
        version = service.view.version
        for one in service.replicas:
            wanted = _version_of(one, plan, version)
            if one.view.changes_to != wanted:
                at = now if wanted is not None else None
                records.change_replica(conn, service.row.id, one.view.number, changes_to=wanted, changes_at=at)
                log.info("replica.changes", service=service.row.name, replica=one.view.number, to=wanted)
        for failed in plan.failures:
            text = f"replica {failed.number} of version {version} is {failed.status}: {causes[failed.number]}"
            records.change_version(conn, service.row.id, version, failure=text, failed_at=now)
            view = next(one.view for one in service.replicas if one.view.number == failed.number)
            log.info("replica.not_changed", service=service.row.name, replica=failed.number, why=failed.message)
            self._timeline.record_end(conn, service, view, failed.status, causes[failed.number], now)

    def carry_out(self, service: ReadService, now: float) -> None:
        """Replace the tasks of the replicas that have answered their requests."""
        for one in service.replicas:
            row = one.stored.row
            if row.changes_to is None or row.changes_at is None or row.job_id is None or one.view.is_ending:
                continue
            if has_drained(one, row.changes_at, now):
                self._carry_out(service, one, now)

    def outrun(self, service: ReadService) -> None:
        """Have nodes run what the database says that run something newer: after a restore of an older backup."""
        for one in service.replicas:
            row, unknown = one.stored.row, one.unknown_revision
            if unknown is None or unknown >= MAX_REVISION or row.job_id is None or one.view.is_ending:
                continue
            with self._sharing.writing(service.row.id) as conn:
                changes.outrun(conn, service.row.id, row.number, job_id=row.job_id, revision=unknown + 1)
            log.warning("replica.outrun", service=service.row.name, replica=row.number, version=row.version)
            self._wake()

    def _carry_out(self, service: ReadService, one: ReadReplica, now: float) -> None:
        row = one.stored.row
        version, revision = service.versions[row.changes_to], row.revision + 1
        try:
            task = self._requests().task_of(service.row, version, row.number, is_spot=row.is_spot)
        except RequestRejected as error:  # such as an upload that is gone
            text = f"replica {row.number} cannot get version {version.version}: {error.message}"
            with self._sharing.writing(service.row.id) as conn:
                records.change_replica(conn, service.row.id, row.number, changes_to=None, changes_at=None)
                records.change_version(conn, service.row.id, version.version, failure=text, failed_at=now)
            log.warning("replica.not_changed", service=service.row.name, replica=row.number, why=text)
            return
        with self._sharing.writing(service.row.id) as conn:
            place = {"version": version.version, "revision": revision, "job_id": row.job_id}
            if not changes.carry_out(conn, service.row.id, row.number, **place, task=task):
                return
            message = f"from version {row.version}, on its machine"
            of_one = {"version": version.version, "replica": row.number, "message": message}
            self._timeline.record(conn, service, "service.replica_changed", now, **of_one)
        log.info("replica.changed", service=service.row.name, replica=row.number, **place)
        failpoint("replica.changed")
        self._wake()

    def push(self) -> None:
        """Tell the nodes that are connected here what they shall run, if they run something else."""
        running = self._readiness.revisions()
        if not running:
            return
        with self._database.connect() as conn:
            wanted = changes.wanted_revisions(conn, {key[0] for key in running})
        for key, revision in running.items():
            if revision < (newest := wanted.get(key[0], 0)):
                self._readiness.push_revision(key, newest)


def _version_of(one: ReadReplica, plan: ServicePlan, version: int) -> int | None:
    """The version that a replica shall get."""
    return version if one.view.number in plan.changes else None
