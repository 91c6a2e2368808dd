"""Reads and writes services, their versions and their replicas."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, bindparam, delete, exists, func, insert, select, update

from perdure.controller.store import codec
from perdure.controller.store.engine.database import database_now
from perdure.controller.store.records.job_claims import Controller
from perdure.controller.store.records.jobs import Attempt, Job, Task
from perdure.controller.store.services.tables import ReplicaRow, ServiceRow, ServiceVersionRow
from perdure.controller.store.tables import UnavailableOfferRow
from perdure.recovery.market.unavailable import UnavailableOffer

Services = ServiceRow.__table__  # type: ignore[attr-defined]
Versions = ServiceVersionRow.__table__  # type: ignore[attr-defined]
Replicas = ReplicaRow.__table__  # type: ignore[attr-defined]
Unavailable = UnavailableOfferRow.__table__  # type: ignore[attr-defined]

UP, DOWN = "UP", "DOWN"
"""What a user requests of a service (`service.wanted`)."""

_UNSETTLED = Services.c.active_name.is_not(None) | exists().where(
    Replicas.c.service_id == Services.c.id, Replicas.c.ended_at.is_(None)
)
_OF_SERVICES = Replicas.c.service_id.in_(bindparam("service_ids", expanding=True))
_REPLICAS = (
    select(Replicas, Job.c.finalized, Job.c.cancel_at, Task.c.status, Task.c.state, Task.c.outcome)
    .add_columns(Task.c.message.label("job_message"), Task.c.reason)
    .join(Job, Job.c.id == Replicas.c.job_id, isouter=True)
    .join(Task, Task.c.job_id == Replicas.c.job_id, isouter=True)
    .where(_OF_SERVICES)
    .order_by(Replicas.c.service_id, Replicas.c.number)
)
_NEWEST_ATTEMPT = (
    select(Attempt.c.job_id, func.max(Attempt.c.generation).label("generation"))
    .where(Attempt.c.job_id.in_(bindparam("job_ids", expanding=True)))
    .group_by(Attempt.c.job_id)
    .subquery()
)
_ATTEMPTS = select(
    Attempt.c.job_id, Attempt.c.generation, Attempt.c.state, Attempt.c.running_at, Attempt.c.offer, Attempt.c.booted_at
).join(
    _NEWEST_ATTEMPT,
    (_NEWEST_ATTEMPT.c.job_id == Attempt.c.job_id) & (_NEWEST_ATTEMPT.c.generation == Attempt.c.generation),
)
_TAKE_NUMBER = (
    update(Services)
    .where(Services.c.id == bindparam("key_id"))
    .values(next_replica=Services.c.next_replica + 1)
    .returning(Services.c.next_replica)
)


@dataclass(frozen=True)
class StoredReplica:
    """A replica with its job (a row), and the newest attempt of the job (a row, or None)."""

    row: Any
    attempt: Any

    @property
    def offer(self) -> Mapping[str, Any]:
        """What its machine is, if it has one."""
        return self.attempt.offer if self.attempt is not None else {}


def insert_service(conn: Connection, columns: Mapping[str, Any]) -> int:
    """Insert a service and return its id. Raises IntegrityError if its name, port or key is in use."""
    return int(conn.execute(insert(Services).values(**columns).returning(Services.c.id)).scalar_one())


def insert_version(conn: Connection, columns: Mapping[str, Any]) -> None:
    """Raises IntegrityError if the version exists."""
    conn.execute(insert(Versions).values(**columns))


def insert_replica(conn: Connection, service_id: int, version: int, *, is_spot: bool, now: float) -> int:
    """Insert a replica without a job, and return its number."""
    number = int(conn.execute(_TAKE_NUMBER, {"key_id": service_id}).scalar_one()) - 1
    row = {"service_id": service_id, "number": number, "version": version, "is_spot": is_spot, "created_at": now}
    conn.execute(insert(Replicas).values(**row, message=""))
    return number


def launch_key(service_id: int, number: int) -> str:
    """The idempotency key of the job of a replica."""
    return f"service/{service_id}/{number}"


def record_launch(conn: Connection, service_id: int, number: int, job_id: int) -> bool:
    """Write down the job of a replica. False if the replica is forgotten: then nothing ends the job.

    Another controller may have taken the service over, and ended the replica since it had no job. Then the replica is
    opened again: it is retired, so whoever owns the service now cancels the job.
    """
    one = (Replicas.c.service_id == service_id, Replicas.c.number == number)
    columns = {"job_id": job_id, "ended_at": None, "final_status": None}
    conn.execute(update(Replicas).where(*one, Replicas.c.job_id.is_(None)).values(columns))
    return conn.execute(select(Replicas.c.job_id).where(*one)).scalar() == job_id


def end_unlaunched(conn: Connection, service_id: int, number: int, now: float) -> None:
    """End a retired replica without a job. One whose job was submitted, but not written down, gets the job instead."""
    one = (Replicas.c.service_id == service_id, Replicas.c.number == number, Replicas.c.job_id.is_(None))
    job_id = conn.execute(select(Job.c.id).where(Job.c.idempotency_key == launch_key(service_id, number))).scalar()
    ended = {"ended_at": now, "final_status": Replicas.c.retired_as}
    conn.execute(update(Replicas).where(*one).values(ended if job_id is None else {"job_id": job_id}))


class ServiceLost(Exception):
    """Another controller owns this service now: touch nothing of it."""


def require_owner(conn: Connection, service_id: int, owner: str) -> None:
    """Keep the service this controller's until the transaction ends. Raises ServiceLost."""
    query = select(Services.c.owner).where(Services.c.id == service_id).with_for_update()
    if conn.execute(query).scalar() != owner:
        raise ServiceLost(f"service {service_id}")


def claim(conn: Connection, owner: str, now: float) -> list[int]:
    """Make `owner` the owner of each service that is not settled and that no live controller owns. Returns the ids."""
    live = select(Controller.c.id).where(Controller.c.lease_until >= database_now(conn, now))
    is_free = Services.c.owner.is_(None) | Services.c.owner.not_in(live)
    free = select(Services.c.id).where(_UNSETTLED, is_free).with_for_update(skip_locked=True)
    ids = list(conn.execute(free).scalars())
    if ids:
        conn.execute(update(Services).where(Services.c.id.in_(ids)).values(owner=owner, report=None))
    return ids


def live_controllers(conn: Connection, now: float) -> dict[str, str]:
    """The controllers that hold their lease: where the others reach them, by id."""
    is_live = Controller.c.lease_until >= database_now(conn, now)
    query = select(Controller.c.id, Controller.c.endpoint, Controller.c.peer_url).where(is_live)
    return {row.id: row.peer_url or row.endpoint for row in conn.execute(query)}


def change(conn: Connection, service_id: int, **columns: Any) -> None:
    """Set columns of a service."""
    conn.execute(update(Services).where(Services.c.id == service_id).values(**columns))


def change_version(conn: Connection, service_id: int, version: int, **columns: Any) -> None:
    conn.execute(
        update(Versions).where(Versions.c.service_id == service_id, Versions.c.version == version).values(**columns)
    )


def change_replica(conn: Connection, service_id: int, number: int, **columns: Any) -> None:
    conn.execute(
        update(Replicas).where(Replicas.c.service_id == service_id, Replicas.c.number == number).values(**columns)
    )


def adopt(conn: Connection, service_id: int, earlier: int, version: int) -> None:
    """Make the replicas of an earlier version that are wanted replicas of another one."""
    is_wanted = (Replicas.c.retired_at.is_(None), Replicas.c.ended_at.is_(None))
    of_earlier = (Replicas.c.service_id == service_id, Replicas.c.version == earlier)
    conn.execute(update(Replicas).where(*of_earlier, *is_wanted).values(version=version))


def get(conn: Connection, service_id: int) -> Row[Any] | None:
    return conn.execute(select(Services).where(Services.c.id == service_id)).first()


def find(conn: Connection, name: str, *, gone: bool = False, user: str | None = None) -> Row[Any] | None:
    """The service `name`; with `gone`, or else the newest one of that name that is down. `user`: only that user's."""
    own = () if user is None else (Services.c.user == user,)
    active = conn.execute(select(Services).where(Services.c.active_name == name, *own)).first()
    if active is not None or not gone:
        return active
    newest = select(Services).where(Services.c.name == name, *own).order_by(Services.c.id.desc()).limit(1)
    return conn.execute(newest).first()


def find_by_key(conn: Connection, key: str) -> Row[Any] | None:
    """The service that was started with this idempotency key."""
    return conn.execute(select(Services).where(Services.c.idempotency_key == key)).first()


def version_by_key(conn: Connection, key: str) -> int | None:
    """The version that an update with this idempotency key has made."""
    return conn.execute(select(Versions.c.version).where(Versions.c.idempotency_key == key)).scalar()


def version(conn: Connection, service_id: int, number: int) -> Row[Any]:
    query = select(Versions).where(Versions.c.service_id == service_id, Versions.c.version == number)
    return conn.execute(query).one()


def versions(conn: Connection, service_ids: Collection[int]) -> dict[tuple[int, int], Row[Any]]:
    """The versions of these services, by service and number."""
    rows = conn.execute(select(Versions).where(Versions.c.service_id.in_(service_ids)))
    return {(row.service_id, row.version): row for row in rows}


def active(conn: Connection) -> list[Row[Any]]:
    """Every service that is not down, oldest first."""
    return list(conn.execute(select(Services).where(Services.c.active_name.is_not(None)).order_by(Services.c.id)))


def unsettled(conn: Connection) -> list[Row[Any]]:
    """Every service that is not down, and those that are down but have replicas that are not over."""
    return list(conn.execute(select(Services).where(_UNSETTLED)))


def ports(conn: Connection) -> set[int]:
    """The ports of all endpoints."""
    return set(conn.execute(select(Services.c.port).where(Services.c.port.is_not(None))).scalars())


def replicas(conn: Connection, service_ids: Sequence[int], *, ended: bool = False) -> dict[int, list[StoredReplica]]:
    """The replicas of these services that are not over, by service; with `ended`, all of them."""
    if not service_ids:
        return {}
    query = _REPLICAS if ended else _REPLICAS.where(Replicas.c.ended_at.is_(None))
    rows = list(conn.execute(query, {"service_ids": list(service_ids)}))
    of_jobs = {"job_ids": [row.job_id for row in rows if row.job_id is not None]}
    attempts = {row.job_id: row for row in conn.execute(_ATTEMPTS, of_jobs)} if of_jobs["job_ids"] else {}
    by_service: dict[int, list[StoredReplica]] = {}
    for row in rows:
        by_service.setdefault(row.service_id, []).append(StoredReplica(row, attempts.get(row.job_id)))
    return by_service


def forget_ended(conn: Connection, service_id: int, kept: int) -> None:
    """Delete the replicas that are over, except the newest `kept`: a service may replace replicas for years."""
    over = select(Replicas.c.number).where(Replicas.c.service_id == service_id, Replicas.c.ended_at.is_not(None))
    oldest_kept = conn.execute(over.order_by(Replicas.c.number.desc()).offset(kept).limit(1)).scalar()
    if oldest_kept is not None:
        conn.execute(
            delete(Replicas).where(
                Replicas.c.service_id == service_id,
                Replicas.c.ended_at.is_not(None),
                Replicas.c.number <= oldest_kept,
            )
        )


def failures(conn: Connection, service_id: int, version_number: int, since: float) -> tuple[int, float | None]:
    """How many replicas of a version have been given up as failed after `since`, and when the last of them was."""
    query = select(func.count(), func.max(Replicas.c.retired_at)).where(
        Replicas.c.service_id == service_id,
        Replicas.c.version == version_number,
        Replicas.c.retired_as.like("FAILED%"),
        Replicas.c.retired_at > since,
    )
    count, last = conn.execute(query).one()
    return int(count), last


def lasting_ready_at(
    conn: Connection, service_id: int, version_number: int, seconds: float, now: float
) -> float | None:
    """When a replica of a version became ready that stayed ready for `seconds`, the newest; None if none has."""
    until = func.coalesce(Replicas.c.retired_at, now)
    query = select(func.max(Replicas.c.ready_at)).where(
        Replicas.c.service_id == service_id,
        Replicas.c.version == version_number,
        Replicas.c.ready_at <= until - seconds,
    )
    at: float | None = conn.execute(query).scalar()
    return at


def last_failure(conn: Connection, service_id: int) -> Row[Any] | None:
    """The replica that failed last."""
    query = select(Replicas).where(Replicas.c.service_id == service_id, Replicas.c.retired_as.like("FAILED%"))
    return conn.execute(query.order_by(Replicas.c.retired_at.desc()).limit(1)).first()


def lost_offers(conn: Connection, service_id: int, now: float) -> list[UnavailableOffer]:
    """The offers that replicas avoid now because one of them got a notice there, or lost its machine. Each once: that
    with the latest end. What a cloud has confirmed, every job avoids in any case."""
    replicas_of = select(Replicas.c.job_id).where(Replicas.c.service_id == service_id, Replicas.c.job_id.is_not(None))
    query = select(Unavailable).where(
        Unavailable.c.job_id.in_(replicas_of), Unavailable.c.from_preemption, Unavailable.c.until > now
    )
    rows = conn.execute(query.order_by(Unavailable.c.until)).mappings()
    offers = (codec.decode_unavailable_offer(dict(row)) for row in rows)
    return list({one.exact or one: one for one in offers}.values())


def service_of_job(conn: Connection, job_id: int) -> Row[Any] | None:
    """`service_id` and `number` of the replica that a job is."""
    query = select(Replicas.c.service_id, Replicas.c.number).where(Replicas.c.job_id == job_id)
    return conn.execute(query).first()


def job_of_replica(conn: Connection, service_id: int, number: int) -> int | None:
    """The job of a replica; None if there is no such replica, or its job is not submitted yet."""
    query = select(Replicas.c.job_id).where(Replicas.c.service_id == service_id, Replicas.c.number == number)
    return conn.execute(query).scalar()
