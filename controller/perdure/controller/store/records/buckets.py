"""Records which buckets a job uses, and which of them the controller created and may remove."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, FromClause, bindparam, exists, insert, or_, select, tuple_, update

from perdure.controller.store.records.intents import IntentKind, Intents
from perdure.controller.store.tables import BucketRow, TaskRow

Buckets = BucketRow.__table__  # type: ignore[attr-defined]
Others = Buckets.alias()
Tasks = TaskRow.__table__  # type: ignore[attr-defined]

_ANY = select(Buckets.c.id).where(Buckets.c.job_id == bindparam("of_job")).limit(1)


@dataclass(frozen=True)
class UsedBucket:
    """A bucket that a job uses. `created`: it did not exist before this job."""

    store: str
    bucket: str
    persistent: bool
    created: bool


def record(conn: Connection, job_id: int, used: UsedBucket) -> bool:
    """Record that a job uses a bucket. True if this call records that the job creates it.

    A bucket stays recorded as created by the job. Transactions that decide about the same bucket for other jobs wait
    for the end of this one.
    """
    _lock(conn, Buckets.c.store == used.store, Buckets.c.bucket == used.bucket)
    same = (Buckets.c.job_id == job_id, Buckets.c.store == used.store, Buckets.c.bucket == used.bucket)
    known = conn.execute(select(Buckets.c.created).where(*same)).one_or_none()
    if known is None:
        columns = {"store": used.store, "bucket": used.bucket, "persistent": used.persistent, "created": used.created}
        conn.execute(insert(Buckets).values(job_id=job_id, **columns))
    elif used.created and not known.created:  # it belonged to another job, and has been removed since
        conn.execute(update(Buckets).where(*same).values(created=True))
    return used.created and (known is None or not known.created)


def disown(conn: Connection, job_id: int, store: str, bucket: str) -> None:
    """Record that the bucket was not created for this job after all."""
    where = (Buckets.c.job_id == job_id, Buckets.c.store == store, Buckets.c.bucket == bucket)
    conn.execute(update(Buckets).where(*where).values(created=False))


def removable(conn: Connection, job_id: int) -> list[UsedBucket]:
    """The buckets to remove now that this job has ended: temporary ones that it or an earlier job created, and that no
    other job uses. So the last job that uses a bucket removes it."""
    if conn.execute(_ANY, {"of_job": job_id}).first() is None:
        return []
    own = select(Others.c.store, Others.c.bucket).where(Others.c.job_id == job_id)
    _lock(conn, tuple_(Buckets.c.store, Buckets.c.bucket).in_(own))
    same = (Others.c.store == Buckets.c.store, Others.c.bucket == Buckets.c.bucket)
    rows = conn.execute(
        select(Buckets).where(
            Buckets.c.job_id == job_id,
            Buckets.c.persistent.is_(False),
            Buckets.c.removed_at.is_(None),
            exists().where(*same, Others.c.created, Others.c.persistent.is_(False), Others.c.removed_at.is_(None)),
        )
    )
    candidates = [UsedBucket(r.store, r.bucket, r.persistent, r.created) for r in rows]
    return [b for b in candidates if not _used_by_another(conn, job_id, b)]


def mark_removed(conn: Connection, buckets: Sequence[UsedBucket], now: float) -> None:
    """Record for all jobs that these buckets were removed."""
    for b in buckets:
        same = (Buckets.c.store == b.store, Buckets.c.bucket == b.bucket, Buckets.c.removed_at.is_(None))
        conn.execute(update(Buckets).where(*same, ~_runs(Buckets)).values(removed_at=now))


def find_remover(conn: Connection, job_id: int, store: str, bucket: str) -> int | None:
    """Another job for which the bucket is being removed now, or None."""
    is_being_removed = exists().where(
        Intents.c.job_id == Buckets.c.job_id,
        Intents.c.kind == IntentKind.REMOVE_STORAGE.value,
        Intents.c.done_at.is_(None),
    )
    others = select(Buckets.c.job_id).where(
        Buckets.c.store == store, Buckets.c.bucket == bucket, Buckets.c.job_id != job_id, is_being_removed
    )
    return conn.execute(others.order_by(Buckets.c.job_id)).scalars().first()


def is_orphaned(conn: Connection, job_id: int, store: str, bucket: str) -> bool:
    """Whether the bucket, which this job created, is unused: the job has ended, and no other job uses it."""
    same = (Buckets.c.job_id == job_id, Buckets.c.store == store, Buckets.c.bucket == bucket)
    temporary = (Buckets.c.created.is_(True), Buckets.c.persistent.is_(False))
    row = conn.execute(select(Buckets).where(*same, *temporary, ~_runs(Buckets))).one_or_none()
    return row is not None and not _used_by_another(conn, job_id, UsedBucket(store, bucket, False, True))


def _used_by_another(conn: Connection, job_id: int, bucket: UsedBucket) -> bool:
    """Whether another job that has not ended uses the bucket, or requested it to persist."""
    same = exists().where(
        Buckets.c.job_id != job_id,
        Buckets.c.store == bucket.store,
        Buckets.c.bucket == bucket.bucket,
        Buckets.c.removed_at.is_(None),
        or_(Buckets.c.persistent, _runs(Buckets)),
    )
    return bool(conn.execute(select(same)).scalar())


def _runs(of: FromClause) -> ColumnElement[bool]:
    """Whether the job of a row has tasks that have not ended."""
    return exists().where(Tasks.c.job_id == of.c.job_id, Tasks.c.ended_at.is_(None))


def _lock(conn: Connection, *where: ColumnElement[bool]) -> None:
    """Make transactions that decide about the same buckets wait for the end of this one."""
    conn.execute(select(Buckets.c.id).where(*where).order_by(Buckets.c.id).with_for_update())
