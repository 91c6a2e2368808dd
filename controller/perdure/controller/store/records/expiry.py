"""Deletes what retention no longer keeps: jobs that are finalized, with their rows.

Each call deletes a limited number of rows, so that other writers wait only briefly. Jobs that are not finalized
are skipped, even if the caller names them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Text, and_, cast, delete, exists, func, or_, select, tuple_

from perdure.controller.store.logs.series.node_metrics import NodeMetrics
from perdure.controller.store.queries import counts
from perdure.controller.store.records.agent_connections import AgentConnections
from perdure.controller.store.records.buckets import Buckets
from perdure.controller.store.records.cluster_slots import Slot
from perdure.controller.store.records.clusters import Cluster
from perdure.controller.store.records.intents import Intents
from perdure.controller.store.records.jobs import IS_PART, Attempt, Job, Node, Task, TimelineEvent
from perdure.controller.store.records.peer_messages import PeerMessages
from perdure.controller.store.tables import UnavailableOfferRow
from perdure.recovery.statuses import TERMINAL

UnavailableOffers = UnavailableOfferRow.__table__  # type: ignore[attr-defined]

STATUSES = tuple(sorted(status.value for status in TERMINAL))
Cursor = tuple[float, int]
"""A position in the order in which tasks of a status ended: the time, and the job's id."""
START: Cursor = (-1.0, 0)

_RETENTION_LOCK = 0x7065726475726502  # an advisory lock: one daemon deletes at a time


def try_lock(conn: Connection) -> bool:
    """Take the lock of retention until the end of the transaction. False if another daemon holds it."""
    if conn.dialect.name != "postgresql":
        return True
    return bool(conn.execute(select(func.pg_try_advisory_xact_lock(_RETENTION_LOCK))).scalar())


def ended_tasks(conn: Connection, status: str, after: Cursor, until: float, limit: int) -> list[Cursor]:
    """The next tasks after `after` that ended with `status` before `until`, the oldest first."""
    place = (Task.c.ended_at, Task.c.job_id)
    wanted = (Task.c.status == status, tuple_(*place) > after, Task.c.ended_at < until)
    rows = conn.execute(select(*place).where(*wanted).order_by(*place).limit(limit))
    return [(row.ended_at, row.job_id) for row in rows]


def finalized(conn: Connection, job_ids: Sequence[int], until: float) -> list[int]:
    """The jobs, of these, that are finalized and whose tasks all ended before `until`, except of existing clusters."""
    return list(conn.execute(select(Job.c.id).where(*_is_expired(job_ids, until)).order_by(Job.c.id)).scalars())


def _is_expired(job_ids: Sequence[int], until: float) -> tuple[ColumnElement[bool], ...]:
    late = exists().where(Task.c.job_id == Job.c.id, or_(Task.c.ended_at.is_(None), Task.c.ended_at >= until))
    in_use = exists().where(Cluster.c.id == Job.c.cluster_id, Cluster.c.active_name.is_not(None))
    return (Job.c.id.in_(job_ids), Job.c.finalized, ~late, ~in_use)


def removable(conn: Connection, job_ids: Sequence[int], until: float) -> list[int]:
    """The `finalized` jobs whose temporary buckets have been removed. The last job that uses such a bucket removes it,
    which needs the row of the job that created it."""
    pending = exists().where(
        Buckets.c.job_id == Job.c.id, Buckets.c.created, Buckets.c.persistent.is_(False), Buckets.c.removed_at.is_(None)
    )
    return list(
        conn.execute(select(Job.c.id).where(*_is_expired(job_ids, until), ~pending).order_by(Job.c.id)).scalars()
    )


def delete_events(conn: Connection, job_ids: Sequence[int], limit: int) -> int:
    """Delete up to `limit` entries of these jobs' timelines. Returns how many."""
    return _delete(conn, TimelineEvent, TimelineEvent.c.job_id.in_(job_ids), limit)


def delete_intents(conn: Connection, job_ids: Sequence[int], limit: int) -> int:
    """Delete up to `limit` intents of these jobs, all of which have an outcome. Returns how many."""
    return _delete(conn, Intents, Intents.c.job_id.in_(job_ids), limit)


def delete_jobs(conn: Connection, job_ids: Sequence[int], until: float) -> int:
    """Delete the jobs that are `removable`, with all their rows. Returns how many.

    The row of a bucket that outlives its job stays: it says that the bucket is persistent, and so protects it from the
    clean-up of other jobs.
    """
    ids = removable(conn, job_ids, until)
    if not ids:
        return 0
    parts = set(conn.execute(select(Job.c.id).where(Job.c.id.in_(ids), IS_PART)).scalars())
    tasks = conn.execute(delete(Task).where(Task.c.job_id.in_(ids)).returning(Task.c.job_id, Task.c.status)).all()
    counts.record_purged(conn, Counter(status for job_id, status in tasks if job_id not in parts))
    conn.execute(delete(Slot).where(Slot.c.job_id.in_(ids)))
    of_attempts = (Node, Attempt, NodeMetrics, AgentConnections)
    for table in (TimelineEvent, Intents, PeerMessages, UnavailableOffers, *of_attempts):
        conn.execute(delete(table).where(table.c.job_id.in_(ids)))
    conn.execute(delete(Buckets).where(Buckets.c.job_id.in_(ids), Buckets.c.removed_at.is_not(None)))
    return conn.execute(delete(Job).where(Job.c.id.in_(ids))).rowcount


def delete_clusters(conn: Connection, until: float, limit: int) -> int:
    """Delete up to `limit` clusters that are down, were last used before `until`, and have no job. Returns how many.

    Their idempotency keys are forgotten, as those of deleted jobs.
    """
    has_jobs = exists().where(Job.c.cluster_id == Cluster.c.id)
    return _delete(conn, Cluster, and_(Cluster.c.active_name.is_(None), Cluster.c.active_at < until, ~has_jobs), limit)


def task_specs(conn: Connection, after: tuple[int, int], limit: int) -> list[tuple[int, int, str]]:
    """The next tasks (job, index, spec as text), in order."""
    key = tuple_(Task.c.job_id, Task.c.index)
    query = select(Task.c.job_id, Task.c.index, cast(Task.c.spec, Text)).where(key > after)
    return [(row[0], row[1], row[2]) for row in conn.execute(query.order_by(Task.c.job_id, Task.c.index).limit(limit))]


def _delete(conn: Connection, table: Any, where: ColumnElement[bool], limit: int) -> int:
    # Select first: a transaction with nothing to delete blocks no writer.
    ids = list(conn.execute(select(table.c.id).where(where).limit(limit)).scalars())
    return conn.execute(delete(table).where(table.c.id.in_(ids))).rowcount if ids else 0
