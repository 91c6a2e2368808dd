"""What users do with services: up, update, down, and ending one replica.

Each is idempotent, and each leaves a state from which the rest follows after a crash: the rows say what is wanted, and
`maintenance.service_watch` does it. Bad input raises RequestRejected, and changes nothing.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import Connection, Engine, Row
from sqlalchemy.exc import IntegrityError

from perdure.controller.runtime.clock import Clock
from perdure.controller.runtime.failpoints import failpoint
from perdure.controller.runtime.security.keyring import Keyring
from perdure.controller.runtime.security.secret_refs import mask_secrets
from perdure.controller.store.records.jobs import NewTask
from perdure.controller.store.services import events, records
from perdure.controller.store.services.records import DOWN, UP, ServiceLost
from perdure.controller.submit.compiler import CompiledJob, parse_tasks, rejection_of
from perdure.controller.submit.errors import RequestRejected
from perdure.controller.submit.requester import Requester
from perdure.controller.submit.serve.endpoints import Endpoint, scheme_warning, with_certificate
from perdure.controller.submit.serve.replica_tasks import OfService, probe_of, replica_config, spec_of
from perdure.controller.submit.serve.versions import fit_the_same_machines, machines_text, run_the_same, uses_spot
from perdure.controller.submit.service import Accepted, Submission
from perdure.recovery.market.services.plan import UpdateMode
from perdure.recovery.market.services.replicas import ReplicaStatus
from perdure.recovery.market.services.scale import first_state
from perdure.sdk import Task, TaskError
from perdure.sdk.spec import service_fields as schema_service

_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?")
_MAX_NAME_CHARS = 63
_CONFIG = "config"
_NO_CALLBACKS = {"callbacks": "refused"}  # in what is sealed: the one who sent the task may run no `event_callback`
_PORT_TRIES = 5
_MAX_REMEMBERED = 10_000


@dataclass(frozen=True)
class StartedService:
    """The service that a request has started or updated."""

    service_id: int
    name: str
    version: int
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class ServiceRequests:
    """Services of one controller. Every method raises RequestRejected, and what the database raises.

    `of`: the user whose services may be changed; None: those of everybody. Another's is as one that does not exist.
    """

    database: Engine
    clock: Clock
    keyring: Keyring
    check: Callable[[Submission], tuple[str, ...]]  # raises RequestRejected if a submission could not be accepted
    renew: Callable[[Submission], CompiledJob]  # renews the uploads of a submission; raises RequestRejected
    accept: Callable[[Submission], Accepted]
    cancel: Callable[[Sequence[int], float | None], None]  # cancels jobs
    find_port: Callable[[Collection[int]], int]  # a free port but these; raises RequestRejected
    unsupported: Callable[[], str | None]  # why there can be no services here, and what to do
    changed: Callable[[], None]  # called when a service has been changed
    owner: str  # this controller, which owns the services that it starts
    hints: Callable[[int], tuple[str, ...]] = lambda _count: ()  # what users of so many replicas should know
    certificate: tuple[str, str] | None = None  # key and certificate (PEM) of endpoints that have none of their own
    wait_open: Callable[[int], None] = lambda _service_id: None  # waits until the endpoint of a service listens
    why_no_acme: Callable[[], str | None] = lambda: None  # why this controller gets no certificates, and what to do
    _reusable: dict[tuple[int, int, int], bool] = field(default_factory=dict, repr=False)

    def up(
        self,
        name: str | None,
        config: Mapping[str, Any],
        by: Requester,
        key: str,
        *,
        with_token: bool,
        tls: Mapping[str, str],
    ) -> StartedService:
        """Start a service. Repeating it with `key` does it once."""
        with self.database.connect() as conn:
            existing = records.find_by_key(conn, key)
        if existing is not None:
            return StartedService(existing.id, existing.name, existing.version)
        if (problem := self.unsupported()) is not None:
            raise RequestRejected("this controller cannot run services", fix=problem, status=409)
        name = name or f"sky-service-{secrets.token_hex(2)}"
        if not _NAME.fullmatch(name) or len(name) > _MAX_NAME_CHARS:
            fix = f"use at most {_MAX_NAME_CHARS} small letters, digits and `-`; begin and end with a letter or digit"
            raise RequestRejected(f"{name!r} cannot be the name of a service", where="name", fix=fix)
        self._require_free(name, by.of)
        task = _checked(config)
        config = task.to_yaml_config()
        warnings = (*self._check(name, config, by.user, by), *self._hints(task))
        token = secrets.token_urlsafe(32) if with_token else ""
        endpoint = self._with_certificate(Endpoint(token), config["service"], tls)
        service_id = self._insert(name, config, task, by, key, endpoint)
        failpoint("service.created")
        self.changed()
        self.wait_open(service_id)
        return StartedService(service_id, name, 1, warnings)

    def update(
        self,
        name: str,
        config: Mapping[str, Any],
        by: Requester,
        key: str,
        mode: UpdateMode,
        tls: Mapping[str, str],
    ) -> StartedService:
        """Make a new version of a service, which replaces the present one. Repeating it with `key` does it once.

        The endpoint gets the certificate of the new version at once, or loses the one that it has.
        """
        service = self.get(name, by.of)
        with self.database.connect() as conn:
            done = records.version_by_key(conn, key)
        if done is not None:
            return StartedService(service.id, service.name, done)
        task = _checked(config)
        config = task.to_yaml_config()
        warnings = (*self._check(name, config, service.user, by), *self._hints(task))
        spec = spec_of(config["service"], uses_spot=uses_spot(task))
        version = service.version + 1
        columns = self._version_columns(service.id, version, config, task, by, key)
        target = min(max(service.target, spec.policy.min_replicas), spec.policy.limit)
        changes = {"version": version, "mode": str(mode), "target": target, "above_since": None, "below_since": None}
        before = self._own_endpoint(service)
        endpoint = self._with_certificate(before, config["service"], tls)
        if endpoint != before:
            changes["secrets"] = self.keyring.seal(vars(endpoint).copy())
        warnings += scheme_warning(before, endpoint, has_default=self.certificate is not None)
        try:
            with self.database.begin() as conn:
                kept = self._running_the_same(conn, service, config, on_spot=uses_spot(task))
                if kept:
                    columns["ready_at"] = max((one.ready_at for one in kept if one.ready_at), default=None)
                records.insert_version(conn, columns)
                records.change(conn, service.id, **changes)
                for one in kept:
                    records.adopt(conn, service.id, one.version, version)
                how = "its replicas are kept: only `service` has changed" if kept else str(mode)
                events.add(conn, service.id, "service.updated", self.clock.now(), version=version, message=how)
        except IntegrityError as error:
            message = f"the service {name} is being updated by another request"
            raise RequestRejected(message, fix="try again", status=409) from error
        failpoint("service.updated")
        self.changed()
        return StartedService(service.id, name, version, warnings)

    def down(self, name: str, of: str | None = None) -> int:
        """End a service. Its replicas are ended by the watch; their logs stay readable. Returns its id."""
        with self.database.connect() as conn:
            service = records.find(conn, name, gone=True, user=of)
        if service is None:
            raise no_such_service(name)
        if service.wanted != DOWN:
            with self.database.begin() as conn:
                columns = {"wanted": DOWN, "active_name": None, "port": None, "secrets": None, "ready_since": None}
                records.change(conn, service.id, **columns)
                events.add(conn, service.id, "service.down", self.clock.now())
            failpoint("service.downed")
            self.changed()
        return int(service.id)

    def terminate_replica(self, name: str, number: int, of: str | None = None) -> None:
        """End one replica. Another one takes its place if the service needs it."""
        service = self.get(name, of)
        with self.database.begin() as conn:
            rows = {one.row.number: one.row for one in records.replicas(conn, [service.id], ended=True)[service.id]}
            row = rows.get(number)
            fix = f"see `perdure serve status {name}`"
            if row is None:
                raise RequestRejected(f"{name} has no replica {number}", where="number", fix=fix, status=404)
            if status := row.final_status or (row.outcome is not None and (row.retired_as or row.status)):
                raise RequestRejected(
                    f"replica {number} of {name} is over: {status}", where="number", fix=fix, status=409
                )
            if row.retired_at is not None:
                return
            now, status, message = self.clock.now(), str(ReplicaStatus.TERMINATED), "a user has ended it"
            columns = {"retired_at": now, "retired_as": status, "message": message}
            records.change_replica(conn, service.id, number, **columns)
            of_one = {"version": row.version, "replica": number, "message": f"{status}: {message}"}
            events.add(conn, service.id, "service.replica_ended", now, **of_one)
        self.changed()

    def get(self, name: str, of: str | None = None) -> Row[Any]:
        """The service of that name that is not down."""
        with self.database.connect() as conn:
            service = records.find(conn, name, user=of)
        if service is None:
            raise no_such_service(name)
        return service

    # --- for the watch ------------------------------------------------------------------------------------

    def launch_replica(
        self, service: Row[Any], version: Row[Any], number: int, *, is_spot: bool, taken_zones: Collection[str] = ()
    ) -> int:
        """Submit the job of a replica, unless it was submitted before. Returns its id. Raises ServiceLost.

        `taken_zones`: where the service's other replicas are, and those that are about to be lost.
        """
        config = self.config_of(version)
        replica = self._submission(service.name, service.user, config, service.id, number, is_spot)
        if replica.service is not None:
            with self.database.connect() as conn:
                avoided = tuple(records.lost_offers(conn, service.id, self.clock.now()))
            of_others = replace(replica.service, taken_zones=tuple(sorted(taken_zones)), avoided=avoided)
            replica = replace(replica, service=of_others)
        accepted = self.accept(replace(replica, may_run_callbacks=self._may_run_callbacks(version)))
        with self.database.begin() as conn:
            is_known = records.record_launch(conn, service.id, number, accepted.job_id)
        if not is_known:
            self.cancel([accepted.job_id], None)
            raise ServiceLost(f"service {service.id}")
        failpoint("replica.launched")
        return accepted.job_id

    def renew_uploads(self, service: Row[Any], version: Row[Any]) -> None:
        """Keep the files of a version, which may have no replica for a long time. Raises RequestRejected."""
        self.renew(self._submission(service.name, service.user, self.config_of(version), 0, 0, is_spot=True))

    def task_of(self, service: Row[Any], version: Row[Any], number: int, *, is_spot: bool) -> NewTask:
        """The task of a replica, to replace the one that it was launched with. Raises RequestRejected."""
        replica = self._submission(service.name, service.user, self.config_of(version), service.id, number, is_spot)
        replica = replace(replica, key=None, may_run_callbacks=self._may_run_callbacks(version))
        return self.renew(replica).tasks[0]

    def may_reuse(self, earlier: Row[Any], version: Row[Any]) -> bool:
        """Whether replicas of one version of a service can become those of another one on their machines."""
        key = (version.service_id, earlier.version, version.version)
        if key not in self._reusable:
            if len(self._reusable) >= _MAX_REMEMBERED:
                self._reusable.clear()
            self._reusable[key] = fit_the_same_machines(self.config_of(earlier), self.config_of(version))
        return self._reusable[key]

    def _running_the_same(
        self, conn: Connection, service: Row[Any], config: Mapping[str, Any], *, on_spot: bool
    ) -> list[Row[Any]]:
        """The versions whose replicas can go on as those of a new task; none if other replicas must be replaced."""
        live = records.replicas(conn, [service.id]).get(service.id, ())
        numbers = {one.row.version for one in live if one.row.retired_at is None}
        versions = [records.version(conn, service.id, number) for number in sorted(numbers or {service.version})]
        is_same = all(run_the_same(self.config_of(one), config, on_spot=on_spot) for one in versions)
        return versions if is_same else []

    def config_of(self, version: Row[Any]) -> dict[str, Any]:
        """The task of a version of a service, with its secrets."""
        config: dict[str, Any] = json.loads(self.keyring.unseal(version.config)[_CONFIG])
        return config

    def newest_config(self, service: Row[Any]) -> dict[str, Any]:
        """The task of the newest version of a service, with its secrets."""
        with self.database.connect() as conn:
            return self.config_of(records.version(conn, service.id, service.version))

    def _may_run_callbacks(self, version: Row[Any]) -> bool:
        """Whether the one who has sent a version may run an `event_callback` on the controller's computer."""
        return not (_NO_CALLBACKS.items() <= self.keyring.unseal(version.config).items())

    def endpoint_of(self, service: Row[Any]) -> Endpoint:
        """What protects the endpoint of a service."""
        endpoint = self._own_endpoint(service)
        if endpoint.tls_cert or self.certificate is None:
            return endpoint
        key, cert = self.certificate
        return replace(endpoint, tls_key=key, tls_cert=cert)

    def _with_certificate(self, before: Endpoint, section: Mapping[str, Any], tls: Mapping[str, str]) -> Endpoint:
        return with_certificate(before, section, tls, self.why_no_acme(), self.clock.now())

    def _own_endpoint(self, service: Row[Any]) -> Endpoint:
        return Endpoint(**self.keyring.unseal(service.secrets))

    def _submission(
        self, name: str, user: str, config: Mapping[str, Any], service_id: int, number: int, is_spot: bool
    ) -> Submission:
        task = _checked(config)
        section = task.to_yaml_config()["service"]
        place = OfService(
            service_id,
            probe_of(section, schema_service.service_port(config)),
            {name: str(value) for name, value in (config.get("secrets") or {}).items()},
            spreads="spot_placer" in (section.get("replica_policy") or {}),
        )
        own = replica_config(config, number, is_spot=is_spot, uses_spot=uses_spot(task))
        return Submission(f"{name}-{number}", [own], user, records.launch_key(service_id, number), service=place)

    def _check(self, name: str, config: Mapping[str, Any], owner: str, by: Requester) -> tuple[str, ...]:
        """The warnings of the service's replicas. Raises RequestRejected if there could be none.

        The replicas are launched later, when nobody asks whether their files are the user's: that is checked here.
        """
        replica = self._submission(name, owner, config, 0, 0, is_spot=True)
        warnings = self.check(replace(replica, uploads_of=by.of, may_run_callbacks=by.may_run_callbacks))
        return tuple(line for line in warnings if "resources.ports" not in line)

    def _hints(self, task: Task) -> tuple[str, ...]:
        if "SKYPILOT_NODE_IPS" in (task.run or ""):
            return ()
        policy = spec_of(task.to_yaml_config()["service"], uses_spot=False).policy
        return self.hints(policy.limit + policy.num_overprovision)

    def _require_free(self, name: str, of: str | None) -> None:
        with self.database.connect() as conn:
            service = records.find(conn, name)
        if service is None:
            return
        if of not in (None, service.user):
            message = f"the name {name} is in use by a service of another user"
            raise RequestRejected(message, where="name", fix="choose another name", status=409)
        fix = f"choose another name; to change it: perdure serve update {name} YAML"
        raise RequestRejected(f"the service {name} exists", where="name", fix=fix, status=409)

    def _insert(
        self, name: str, config: Mapping[str, Any], task: Task, by: Requester, key: str, endpoint: Endpoint
    ) -> int:
        spec = spec_of(task.to_yaml_config()["service"], uses_spot=uses_spot(task))
        sealed = self.keyring.seal(vars(endpoint).copy())
        refused: set[int] = set()
        for _ in range(_PORT_TRIES):
            with self.database.connect() as conn:
                port = self.find_port(records.ports(conn) | refused)
            columns = {
                "name": name,
                "active_name": name,
                "user": by.user,
                "wanted": UP,
                "created_at": self.clock.now(),
                "port": port,
                "secrets": sealed,
                "target": first_state(spec.policy).target,
                "idempotency_key": key,
                "version": 1,
                "mode": str(UpdateMode.ROLLING),
                "next_replica": 1,
                "owner": self.owner,
            }
            try:
                with self.database.begin() as conn:
                    service_id = records.insert_service(conn, columns)
                    records.insert_version(conn, self._version_columns(service_id, 1, config, task, by, None))
                    events.add(
                        conn, service_id, "service.started", self.clock.now(), version=1, message=f"by {by.user}"
                    )
                return service_id
            except IntegrityError:  # another request has taken the name, the port or the key a moment ago
                self._require_free(name, by.of)
                refused.add(port)
        raise RequestRejected("no port for the endpoint could be reserved", fix="try again", status=409)

    def _version_columns(
        self,
        service_id: int,
        version: int,
        config: Mapping[str, Any],
        task: Task,
        by: Requester,
        key: str | None,
    ) -> dict[str, Any]:
        sealed = {_CONFIG: json.dumps(config), **({} if by.may_run_callbacks else _NO_CALLBACKS)}
        secret_values = {name: str(value) for name, value in (config.get("secrets") or {}).items()}
        return {
            "service_id": service_id,
            "version": version,
            "created_at": self.clock.now(),
            "section": mask_secrets(task.to_yaml_config()["service"], secret_values),
            "app_port": schema_service.service_port(config),
            "resources": machines_text(task),
            "uses_spot": uses_spot(task),
            "config": self.keyring.seal(sealed),
            "idempotency_key": key,
        }


def no_such_service(name: str) -> RequestRejected:
    return RequestRejected(f"there is no service {name}", where="name", fix="see `perdure serve status`", status=404)


def _checked(config: Mapping[str, Any]) -> Task:
    """The task of a service. Raises RequestRejected."""
    (task,) = parse_tasks([config], ignored=("service",))
    if problems := schema_service.check_service(task.to_yaml_config()):
        raise rejection_of(TaskError(problems))
    return task
