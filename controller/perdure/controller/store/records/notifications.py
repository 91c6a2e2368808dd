"""The outbox of notifications: rows that wait to be sent, one for each event and channel.

A row is claimed with a lease, sent, and marked. A sender that dies in between leaves a lease that expires: the row is
sent again, with the same event id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, FromClause, and_, bindparam, delete, exists, func, or_, select, update

from perdure.controller.store.engine.database import insert_into
from perdure.controller.store.records.jobs import Job
from perdure.controller.store.tables import NotificationRow

Notifications = NotificationRow.__table__  # type: ignore[attr-defined]
_Earlier = Notifications.alias("earlier")

_PENDING = Notifications.c.done_at.is_(None)
_DUE = (
    _PENDING,
    Notifications.c.wake_at <= bindparam("now"),
    Notifications.c.leased_until <= bindparam("now"),
)
_BATCH_SIZE = 500  # parameters of one statement


def _in_order(*conditions: ColumnElement[bool]) -> tuple[FromClause, ColumnElement[bool]]:
    """Joins each row with the first pending row of its channel and job that meets `conditions`, and selects the rows
    up to that one: the events of a job reach a channel in their order. Where there is none, or no job, all are
    selected.

    The first rows are grouped once per statement. A receiver that is down leaves thousands of pending rows: a search
    for earlier ones per row takes the square of that.
    """
    groups = (_Earlier.c.channel, _Earlier.c.job_id)
    first = select(*groups, func.min(_Earlier.c.id).label("id")).group_by(*groups)
    limit = first.where(_Earlier.c.done_at.is_(None), _Earlier.c.job_id.is_not(None), *conditions).subquery("limit_of")
    is_same = and_(limit.c.channel == Notifications.c.channel, limit.c.job_id == Notifications.c.job_id)
    return Notifications.outerjoin(limit, is_same), or_(limit.c.id.is_(None), Notifications.c.id <= limit.c.id)


_CANNOT_BE_SENT = or_(_Earlier.c.wake_at > bindparam("now"), _Earlier.c.leased_until > bindparam("now"))
_UNBLOCKED, _IS_UNBLOCKED = _in_order(_CANNOT_BE_SENT)
_CHANNELS = (
    select(
        Notifications.c.channel,
        func.count().label("number"),
        func.min(Notifications.c.at).label("oldest_at"),
    )
    .select_from(_UNBLOCKED)
    .where(*_DUE, _IS_UNBLOCKED)
    .group_by(Notifications.c.channel)
)


@dataclass(frozen=True)
class DueChannel:
    """What waits for one channel."""

    name: str
    number: int
    oldest_at: float  # when the oldest of the events happened


@dataclass(frozen=True)
class Notification:
    """An event that is to be sent to a channel. `body` is plain JSON."""

    id: int
    event_id: str
    channel: str
    kind: str
    job_id: int | None
    at: float
    body: dict[str, Any]
    try_count: int


def add_all(conn: Connection, rows: Sequence[Mapping[str, Any]]) -> None:
    """Queue events: columns `event_id`, `channel`, `kind`, `job_id`, `at` and `body`. One that is queued stays as it
    is."""
    if rows:
        insert = insert_into(conn, Notifications).on_conflict_do_nothing(index_elements=["event_id", "channel"])
        conn.execute(insert, [{"try_count": 0, "leased_until": 0.0, "wake_at": row["at"], **row} for row in rows])


def due_channels(conn: Connection, now: float) -> list[DueChannel]:
    """The channels that something can be sent to now. Rows behind one of their job that cannot be sent do not count."""
    return [DueChannel(row.channel, row.number, row.oldest_at) for row in conn.execute(_CHANNELS, {"now": now})]


def claim(
    conn: Connection, channel: str, owner: str, *, now: float, lease_s: float, limit: int, one_per_job: bool
) -> list[Notification]:
    """Lease the oldest due rows of a channel, at most `limit`. `one_per_job`: of each job, only the first; otherwise
    all that can be sent as one message.

    No other sender gets them before the lease expires.
    """
    is_of_channel = _Earlier.c.channel == channel
    rows_in_order, is_in_order = _in_order(is_of_channel, *(() if one_per_job else (_CANNOT_BE_SENT,)))
    wanted = select(Notifications.c.id).select_from(rows_in_order)
    wanted = wanted.where(*_DUE, is_in_order, Notifications.c.channel == channel)
    wanted = wanted.order_by(Notifications.c.id).limit(limit)
    if conn.dialect.name == "postgresql":
        wanted = wanted.with_for_update(skip_locked=True, of=Notifications)
    leased = (
        update(Notifications)
        .where(Notifications.c.id.in_(wanted))
        .values(leased_by=owner, leased_until=now + lease_s)
        .returning(Notifications)
    )
    rows = conn.execute(leased, {"now": now}).all()
    return [
        Notification(r.id, r.event_id, r.channel, r.kind, r.job_id, r.at, r.body, r.try_count)
        for r in sorted(rows, key=lambda row: row.id)
    ]


def mark_done(conn: Connection, ids: Sequence[int], *, outcome: str, now: float, error: str | None = None) -> None:
    """`outcome`: "sent", or "dead" for a row that is given up."""
    for part in _parts(ids):
        values = {"done_at": now, "outcome": outcome, "error": error, "leased_by": None, "leased_until": 0.0}
        sent = Notifications.c.try_count + 1
        conn.execute(update(Notifications).where(Notifications.c.id.in_(part)).values(try_count=sent, **values))


def mark_failed(conn: Connection, ids: Sequence[int], *, error: str, wake_at: float) -> None:
    """A try has failed: the rows are due again at `wake_at`."""
    for part in _parts(ids):
        values = {"wake_at": wake_at, "error": error, "leased_by": None, "leased_until": 0.0}
        tried = Notifications.c.try_count + 1
        conn.execute(update(Notifications).where(Notifications.c.id.in_(part)).values(try_count=tried, **values))


def release_leases(conn: Connection) -> None:
    """End all leases: for a controller that shares its database with no other, so that nobody else holds one."""
    conn.execute(update(Notifications).where(_PENDING, Notifications.c.leased_until > 0).values(leased_until=0.0))


def give_up_channel(conn: Connection, channel: str, *, error: str, now: float, until: float) -> None:
    """Give up the events until then that wait for a channel which no longer exists, or refuses to be called."""
    values = {"done_at": now, "outcome": "dead", "error": error}
    given_up = (_PENDING, Notifications.c.channel == channel, Notifications.c.at <= until)
    conn.execute(update(Notifications).where(*given_up).values(**values))


def delete_done(conn: Connection, before: float, limit: int) -> int:
    """Delete rows that were done before `before`. Returns how many."""
    old = select(Notifications.c.id).where(Notifications.c.done_at < before).limit(limit)
    return conn.execute(delete(Notifications).where(Notifications.c.id.in_(old))).rowcount


def count_pending(conn: Connection) -> int:
    return int(conn.execute(select(func.count()).select_from(Notifications).where(_PENDING)).scalar_one())


def latest(
    conn: Connection, limit: int, *, channel: str | None = None, job_id: int | None = None, user: str | None = None
) -> list[Any]:
    """The newest rows first; with `user`, only those about that user's jobs."""
    wanted = select(Notifications).order_by(Notifications.c.id.desc()).limit(limit)
    if channel is not None:
        wanted = wanted.where(Notifications.c.channel == channel)
    if job_id is not None:
        wanted = wanted.where(Notifications.c.job_id == job_id)
    if user is not None:
        wanted = wanted.where(exists().where(Job.c.id == Notifications.c.job_id, Job.c.user == user))
    return list(conn.execute(wanted))


def _parts(ids: Sequence[int]) -> list[Sequence[int]]:
    return [ids[i : i + _BATCH_SIZE] for i in range(0, len(ids), _BATCH_SIZE)]
