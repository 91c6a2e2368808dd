"""Keeps services as they are wanted: launches and ends replicas, and tells the proxies which of them get requests.

Every service is evaluated each second, and at once when something changes. `recovery.market.services` decides. What is
decided is written down before it is done, so that an evaluation completes what a crash has interrupted.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import structlog
from sqlalchemy import Connection, Engine, Row
from sqlalchemy.exc import DataError, IntegrityError, ProgrammingError

from perdure.controller.maintenance.serve.changes import MAX_DRAIN_S, ReplicaChanges, has_drained
from perdure.controller.maintenance.serve.launches import ReplicaLaunches
from perdure.controller.maintenance.serve.metrics import ServiceMetrics
from perdure.controller.maintenance.serve.proxy_state import (
    Proxies,
    ProxyReport,
    ProxySettings,
    ProxyState,
    ProxyTarget,
)
from perdure.controller.maintenance.serve.reader import ReadReplica, ReadService, ServiceReader, SilenceClock
from perdure.controller.maintenance.serve.shared_state import ServiceSharing
from perdure.controller.maintenance.serve.timeline import ServiceTimeline
from perdure.controller.nodes.readiness import NodeReadiness
from perdure.controller.runtime.clock import Clock
from perdure.controller.runtime.failpoints import failpoint
from perdure.controller.runtime.keys import AttemptKey
from perdure.controller.store.engine.database import UNAVAILABLE
from perdure.controller.store.services import records
from perdure.controller.store.services.records import UP, ServiceLost
from perdure.controller.submit.errors import RequestRejected
from perdure.controller.submit.serve.services import ServiceRequests
from perdure.recovery.market.services.plan import ServicePlan, decide
from perdure.recovery.market.services.replicas import FAILURES, ReplicaStatus, ServiceStatus, service_status
from perdure.recovery.statuses import AttemptState
from perdure.sdk.spec import service_fields as schema_service

log = structlog.get_logger(__name__)

INTERVAL_S = 1.0
"""How often every service is evaluated, of real time: what wakes it earlier is a hint that may be lost."""
MIN_PAUSE_S = 0.02
RENEW_INTERVAL_S = 3600.0
LOST_S = 3.0
"""How long the node of a replica may be disconnected before its streams end: its agent may just be started again."""
MAX_KEPT = 100
"""So many replicas that are over are remembered of each service."""
_SLOTS_STEP = 16
_OVER = (AttemptState.STOPPED, AttemptState.GONE)
_MAX_MESSAGE_CHARS = 1000
_OF_ONE = (DataError, IntegrityError, ProgrammingError)  # of what is written for a service, not of the database


class ServiceWatch:
    """A thread of a controller. `last_lines`: the end of the log of a job, for users."""

    def __init__(
        self,
        database: Engine,
        clock: Clock,
        requests: ServiceRequests,
        proxies: Proxies,
        readiness: NodeReadiness,
        sharing: ServiceSharing,
        timeline: ServiceTimeline,
        metrics: ServiceMetrics,
        *,
        cancel: Callable[[Sequence[int], float | None], None],
        last_lines: Callable[[int], str],
    ) -> None:
        self._database = database
        self._clock = clock
        self._requests = requests
        self._proxies = proxies
        self._cancel = cancel
        self._last_lines = last_lines
        self._sharing = sharing
        self._timeline = timeline
        self._metrics = metrics
        self._silence = SilenceClock(clock.now)
        self._launches = ReplicaLaunches(lambda: self._requests, sharing, timeline)
        self._changes = ReplicaChanges(database, lambda: self._requests, readiness, sharing, timeline, self.wake)
        reports, may_reuse = self._read_reports, requests.may_reuse
        self.reader = ServiceReader(readiness, reports, sharing.probes, may_reuse, self._silence)
        self._reports: dict[int, ProxyReport] = {}
        self._jobs: set[int] = set()  # of replicas that are not over
        self._states: dict[int, Sequence[ProxyState]] = {}  # of the proxy of each service: one, or none
        self._renewed_at: dict[int, float] = {}  # when the uploads of a service were last renewed
        self._woken = threading.Event()
        self._ended = threading.Event()
        self._is_stopped = False
        self._thread = threading.Thread(target=self._run, name="services", daemon=True)

    def start(self) -> None:
        self._woken.set()  # endpoints of an earlier daemon are open again at once
        self._thread.start()

    def stop(self) -> None:
        """Stop, and end the proxies. The services go on when the next controller starts."""
        self._is_stopped = True
        self._ended.set()
        self._woken.set()
        if self._thread.is_alive():
            self._thread.join()
        self._proxies.stop()

    def job_changed(self, job_id: int) -> None:
        """Evaluate now if the job is a replica. From any thread."""
        if job_id in self._jobs or self._sharing.publishes(job_id):
            self._woken.set()

    def wake(self) -> None:
        """Evaluate now. From any thread."""
        self._woken.set()

    def _run(self) -> None:
        is_started = False
        while not self._is_stopped:
            self._woken.wait(INTERVAL_S)
            if self._is_stopped:
                return
            self._ended.wait(MIN_PAUSE_S)  # nodes may report changes as often as they like
            self._woken.clear()
            try:
                is_started = is_started or self._start_proxies()
                self.evaluate()
            except UNAVAILABLE as error:
                log.warning("database.unavailable", error=str(error))
            except Exception:  # a bug must not end the thread, on which every service depends
                log.exception("services.failed")

    def _start_proxies(self) -> bool:
        """Whether there can be proxies. Services are evaluated without them: machines that nobody ends cost money."""
        with suppress(OSError):  # such as a full disk: it is the problem of all proxies
            self._proxies.start()
            return True
        return False

    def evaluate(self) -> None:
        """Evaluate every service once. Raises what the database raises."""
        self._sharing.claim()
        self._sharing.publish_probes()
        with self._database.connect() as conn:
            rows = [row for row in records.unsettled(conn) if self._sharing.owns(row)]
            now = self._clock.now()
            self._reports = {row.id: self._proxies.report(row.id, now) for row in rows if row.wanted == UP}
            services = self.reader.load(conn, rows)
        self._metrics.observe(services)
        self._jobs = {
            one.stored.row.job_id
            for service in services
            for one in service.replicas
            if one.stored.row.job_id is not None
        }
        # Those that cannot be read keep theirs too.
        states = {row.id: self._states[row.id] for row in rows if row.wanted == UP and row.id in self._states}
        for service in services:
            states[service.row.id] = self._settle(service, now, states.get(service.row.id, ()))
        self._states = states
        self._silence.keep({one.attempt for service in services for one in service.replicas})
        self._changes.push()
        self._proxies.apply([one for of_one in states.values() for one in of_one])
        with suppress(ServiceLost):
            self._sharing.publish_reports({one: self._report(one) for one in self._reports})

    def _settle(self, service: ReadService, now: float, last: Sequence[ProxyState]) -> Sequence[ProxyState]:
        """Do what one service needs. Returns the state of its proxy, which stays at the `last` one if that fails."""
        try:
            self._renew_uploads(service, now)
            return self._evaluate(service, now)
        except ServiceLost:  # the next evaluation does not read it any more
            log.info("service.lost", service=service.row.name)
            return ()
        except Exception as error:  # other services must not depend on what is wrong with this one
            if isinstance(error, UNAVAILABLE) and not isinstance(error, _OF_ONE):
                raise
            log.exception("service.not_settled", service=service.row.name)
            return last

    def _renew_uploads(self, service: ReadService, now: float) -> None:
        if service.row.wanted == UP and now - self._renewed_at.get(service.row.id, 0.0) >= RENEW_INTERVAL_S:
            self._renewed_at[service.row.id] = now
            try:
                for number in sorted({service.row.version, *(one.view.version for one in service.replicas)}):
                    self._requests.renew_uploads(service.row, service.versions[number])
            except RequestRejected as error:  # its replicas go on, and it is asked again in an hour
                log.warning("service.uploads_not_renewed", service=service.row.name, error=str(error))

    def _read_reports(self, conn: Connection, rows: Sequence[Row[Any]]) -> Mapping[int, ProxyReport]:
        return self._sharing.reports(conn, rows, self._report)

    def _report(self, service_id: int) -> ProxyReport:
        """The newest report of a proxy. Whether it runs is what is true now."""
        return replace(self._reports.get(service_id, ProxyReport()), problem=self._proxies.problem(service_id))

    def _evaluate(self, service: ReadService, now: float) -> list[ProxyState]:
        """Do what one service needs. Returns the state of its proxy; of a service that is down, nothing."""
        self._note_ready(service, now)
        self._note_ends(service, now)
        if service.row.wanted != UP:
            self._retire_all(service, now)
            self._end_retired(service, now)
            return []
        plan = decide(service.view, service.report.traffic, now)
        self._record(service, plan, now)
        self._launches.launch_missing(service, now, self._jobs)
        self._changes.outrun(service)
        self._changes.carry_out(service, now)
        self._end_retired(service, now)
        return [self._proxy_state(service, plan)]

    # --- what has happened --------------------------------------------------------------------------------

    def _note_ready(self, service: ReadService, now: float) -> None:
        """Record the replicas that are ready for the first time, and that the newest version is ready now."""
        ready = [one for one in service.replicas if one.view.is_ready]
        new = [one for one in ready if not one.view.was_ready]
        if not new and (service.row.ready_since is not None) == bool(ready):
            return
        with self._sharing.writing(service.row.id) as conn:
            for one in new:
                records.change_replica(conn, service.row.id, one.view.number, ready_at=now)
                records.change_version(conn, service.row.id, one.view.version, ready_at=now)
                log.info("replica.ready", service=service.row.name, replica=one.view.number)
                of_one: dict[str, Any] = {"version": one.view.version, "replica": one.view.number}
                self._timeline.record(conn, service, "service.replica_ready", now, **of_one)
            if (
                ready
                and service.newest.ready_at is None
                and any(one.view.version == service.row.version for one in ready)
            ):
                self._timeline.record(conn, service, "service.ready", now, version=service.row.version)
            if ready and service.row.ready_since is None:
                records.change(conn, service.row.id, ready_since=now)
        if new:
            self._woken.set()  # what has just become ready changes the next decision

    def _note_ends(self, service: ReadService, now: float) -> None:
        """Record why replicas end whose jobs are over, and those of which nothing is left."""
        for one in service.replicas:
            row, view = one.stored.row, one.view
            columns: dict[str, Any] = {}
            if view.outcome is not None and row.retired_as is None:
                columns |= {"retired_at": now, "retired_as": str(view.final_status)}
                columns |= {"message": self._cause(one, view.final_status, view.message)}
            if row.finalized:
                columns |= {"ended_at": now, "final_status": row.retired_as or str(view.final_status)}
            if columns:
                with self._sharing.writing(service.row.id) as conn:
                    records.change_replica(conn, service.row.id, view.number, **columns)
                    records.forget_ended(conn, service.row.id, MAX_KEPT)
                    if "retired_as" in columns:
                        self._timeline.record_end(
                            conn, service, view, ReplicaStatus(columns["retired_as"]), columns["message"], now
                        )
                if row.finalized:
                    self._metrics.ended(service.row.id, columns["final_status"])
                log.info("replica.over", service=service.row.name, replica=view.number, **columns)
                self._woken.set()

    def _cause(self, one: ReadReplica, status: ReplicaStatus, message: str) -> str:
        """A sentence for users, with the end of the log if the program has failed."""
        job_id = one.stored.row.job_id
        lines = self._last_lines(job_id) if job_id is not None and status in FAILURES else ""
        return (f"{message}; its log ends with: {lines}" if lines else message)[:_MAX_MESSAGE_CHARS]

    # --- what follows -------------------------------------------------------------------------------------

    def _record(self, service: ReadService, plan: ServicePlan, now: float) -> None:
        """Write down a plan before it is carried out."""
        scale, known = plan.scale, service.view.scale
        by_number = {one.view.number: one for one in service.replicas}
        if scale == known and not (plan.launches or plan.retirements or self._changes.is_due(service, plan)):
            return
        ends = (*plan.retirements, *plan.failures)
        causes = {one.number: self._cause(by_number[one.number], one.status, one.message) for one in ends}
        with self._sharing.writing(service.row.id) as conn:
            if scale != known:
                state = {"target": scale.target, "above_since": scale.above_since, "below_since": scale.below_since}
                records.change(conn, service.row.id, **state)
            if scale.target != known.target:
                message = f"from {known.target} to {scale.target} replicas"
                self._timeline.record(conn, service, "service.scaled", now, message=message)
            for one in plan.retirements:
                columns = {"retired_at": now, "retired_as": str(one.status), "message": causes[one.number]}
                records.change_replica(conn, service.row.id, one.number, **columns)
                log.info("replica.retired", service=service.row.name, replica=one.number, **columns)
                self._timeline.record_end(
                    conn, service, by_number[one.number].view, one.status, causes[one.number], now
                )
            self._changes.record(conn, service, plan, causes, now)
            version = service.view.version
            for is_spot in plan.launches:
                number = records.insert_replica(conn, service.row.id, version, is_spot=is_spot, now=now)
                log.info("replica.wanted", service=service.row.name, replica=number, spot=is_spot)
                of_one: dict[str, Any] = {"version": version, "replica": number, "message": "spot" if is_spot else ""}
                self._timeline.record(conn, service, "service.replica_launched", now, **of_one)
        failpoint("service.decided")
        self._woken.set()  # the next evaluation reads what was written, and does it

    def _retire_all(self, service: ReadService, now: float) -> None:
        left = [one.view.number for one in service.replicas if one.view.retired_as is None]
        if not left:
            return
        columns = {"retired_at": now - MAX_DRAIN_S, "retired_as": str(ReplicaStatus.TERMINATED), "message": ""}
        with self._sharing.writing(service.row.id) as conn:
            for number in left:
                records.change_replica(conn, service.row.id, number, **columns)
        self._woken.set()

    def _end_retired(self, service: ReadService, now: float) -> None:
        """Cancel the jobs of retired replicas that have answered their requests; forget those without a job."""
        due = []
        for one in service.replicas:
            row = one.stored.row
            if row.retired_at is None or row.outcome is not None or row.cancel_at is not None:
                continue
            if row.job_id is None:
                with self._sharing.writing(service.row.id) as conn:
                    records.end_unlaunched(conn, service.row.id, row.number, now)
                continue
            if has_drained(one, row.retired_at, now):
                due.append(row.job_id)
        if due:
            self._cancel(due, None)

    # --- the proxy ----------------------------------------------------------------------------------------

    def _proxy_state(self, service: ReadService, plan: ServicePlan) -> ProxyState:
        return ProxyState(
            self._settings(service),
            [target for one in service.replicas if (target := self._target(service, one, plan)) is not None],
            self._refusal(service),
        )

    def _target(self, service: ReadService, one: ReadReplica, plan: ServicePlan) -> ProxyTarget | None:
        """A replica that gets requests or still answers some; None for any other."""
        key, state = one.attempt, one.view.attempt_state
        if key is None or (not one.view.was_ready and not one.view.is_ready):
            return None
        if state is None or state in _OVER or one.stored.row.finalized or self._is_lost(one, key):
            return None
        version = service.versions[one.view.version]
        is_serving = one.view.number in plan.serving
        return ProxyTarget(one.view.number, key, version.app_port, is_serving, service.weight_of(one))

    def _is_lost(self, one: ReadReplica, key: AttemptKey) -> bool:
        """Whether its node has been disconnected for so long that its streams are over: nothing comes from it."""
        return one.view.probe is None and self._silence.has_lasted(key, LOST_S)

    def _settings(self, service: ReadService) -> ProxySettings:
        section, endpoint = service.newest.section, self._requests.endpoint_of(service.row)
        balancer = section.get("load_balancer") or {}
        # Replicas of two versions, and some that answer their last requests. Rounded: a change restarts the proxy.
        most = 2 * (service.view.spec.policy.limit + service.view.spec.policy.num_overprovision) + _SLOTS_STEP
        return ProxySettings(
            service_id=service.row.id,
            name=service.row.name,
            port=service.row.port,
            token=endpoint.token,
            tls_key=endpoint.tls_key,
            tls_cert=endpoint.tls_cert,
            round_robin=section.get("load_balancing_policy") == schema_service.ROUND_ROBIN,
            stream_timeout_s=float(balancer.get("stream_timeout_seconds", schema_service.DEFAULT_STREAM_TIMEOUT_S)),
            max_targets=-(-most // _SLOTS_STEP) * _SLOTS_STEP,
        )

    def _refusal(self, service: ReadService) -> str:
        """Why nobody needs to wait for a replica: the service cannot start."""
        views = [one.view for one in service.replicas]
        status = service_status(views, is_wanted=True, has_failed=service.view.has_failed)
        if status is ServiceStatus.FAILED:
            return f"the service {service.row.name} cannot start: perdure serve status {service.row.name}"
        return ""
