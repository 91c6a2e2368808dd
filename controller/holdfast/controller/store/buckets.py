"""Which buckets a job uses, and which of them we made and may remove."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, exists, insert, select, update

from holdfast.controller.store.tables import BucketRow, TaskRow

Buckets = BucketRow.__table__  # type: ignore[attr-defined]
Tasks = TaskRow.__table__  # type: ignore[attr-defined]


@dataclass(frozen=True)
class UsedBucket:
    """A bucket in a job's use. `created`: it did not exist before this job."""

    store: str
    bucket: str
    persistent: bool
    created: bool


def record(conn: Connection, job_id: int, used: Sequence[UsedBucket]) -> bool:
    """Remember the buckets of a job; one that is known keeps what was recorded first. Whether all of them are new."""
    known = {(r.store, r.bucket) for r in conn.execute(select(Buckets).where(Buckets.c.job_id == job_id))}
    new = [b for b in used if (b.store, b.bucket) not in known]
    for b in new:
        conn.execute(
            insert(Buckets).values(
                job_id=job_id, store=b.store, bucket=b.bucket, persistent=b.persistent, created=b.created
            )
        )
    return len(new) == len(used)


def disown(conn: Connection, job_id: int, store: str, bucket: str) -> None:
    """The bucket was not made for this job after all."""
    where = (Buckets.c.job_id == job_id, Buckets.c.store == store, Buckets.c.bucket == bucket)
    conn.execute(update(Buckets).where(*where).values(created=False))


def removable(conn: Connection, job_id: int) -> list[UsedBucket]:
    """Buckets that this job made, that shall not persist, and that no other job uses."""
    rows = conn.execute(
        select(Buckets).where(
            Buckets.c.job_id == job_id,
            Buckets.c.created.is_(True),
            Buckets.c.persistent.is_(False),
            Buckets.c.removed_at.is_(None),
        )
    )
    found = [UsedBucket(r.store, r.bucket, r.persistent, r.created) for r in rows]
    return [b for b in found if not _used_by_another(conn, job_id, b)]


def removed(conn: Connection, job_id: int, now: float) -> None:
    """Everything that was removable of this job is gone."""
    for b in removable(conn, job_id):
        conn.execute(
            update(Buckets)
            .where(Buckets.c.job_id == job_id, Buckets.c.store == b.store, Buckets.c.bucket == b.bucket)
            .values(removed_at=now)
        )


def is_left_over(conn: Connection, job_id: int, store: str, bucket: str) -> bool:
    """Whether the bucket, which this job made, has nothing to be there for: the job is over, and no other uses it."""
    ran = exists().where(Tasks.c.job_id == job_id, Tasks.c.ended_at.is_(None))
    same = (Buckets.c.job_id == job_id, Buckets.c.store == store, Buckets.c.bucket == bucket)
    temporary = (Buckets.c.created.is_(True), Buckets.c.persistent.is_(False))
    row = conn.execute(select(Buckets).where(*same, *temporary, ~ran)).one_or_none()
    return row is not None and not _used_by_another(conn, job_id, UsedBucket(store, bucket, False, True))


def _used_by_another(conn: Connection, job_id: int, bucket: UsedBucket) -> bool:
    same = exists().where(
        Buckets.c.job_id != job_id,
        Buckets.c.store == bucket.store,
        Buckets.c.bucket == bucket.bucket,
        Buckets.c.removed_at.is_(None),
    )
    return bool(conn.execute(select(same)).scalar())
