"""What retention removes of jobs that have settled: some rows at a time, so that whoever else writes waits a moment at
most. A job that has not settled is passed over here, whatever is asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Text, cast, delete, exists, func, or_, select, tuple_

from perdure.controller.store import counts
from perdure.controller.store.buckets import Buckets
from perdure.controller.store.connections import Connections
from perdure.controller.store.intents import Intents
from perdure.controller.store.jobs import Attempt, EventT, Job, Node, Task
from perdure.controller.store.letters import Letters
from perdure.controller.store.tables import RefusalRow
from perdure.recovery.statuses import TERMINAL

Refusals = RefusalRow.__table__  # type: ignore[attr-defined]

STATUSES = tuple(sorted(status.value for status in TERMINAL))
Place = tuple[float, int]
"""A place in the order in which tasks of a status ended: when, and the job's id."""
START: Place = (-1.0, 0)

_REMOVING = 0x686F6C6466617365  # the advisory lock of the one who removes


def is_mine(conn: Connection) -> bool:
    """Whether no other daemon is removing something at this time; none begins to before the transaction ends."""
    if conn.dialect.name != "postgresql":
        return True
    return bool(conn.execute(select(func.pg_try_advisory_xact_lock(_REMOVING))).scalar())


def ended(conn: Connection, status: str, after: Place, until: float, limit: int) -> list[Place]:
    """The next tasks that ended with `status` before `until`, the oldest first."""
    place = (Task.c.ended_at, Task.c.job_id)
    wanted = (Task.c.status == status, tuple_(*place) > after, Task.c.ended_at < until)
    found = conn.execute(select(*place).where(*wanted).order_by(*place).limit(limit))
    return [(row.ended_at, row.job_id) for row in found]


def settled(conn: Connection, job_ids: Sequence[int], until: float) -> list[int]:
    """Those of the jobs that have settled, and whose every task ended before `until`."""
    return list(conn.execute(select(Job.c.id).where(*_over(job_ids, until)).order_by(Job.c.id)).scalars())


def _over(job_ids: Sequence[int], until: float) -> tuple[ColumnElement[bool], ...]:
    late = exists().where(Task.c.job_id == Job.c.id, or_(Task.c.ended_at.is_(None), Task.c.ended_at >= until))
    return (Job.c.id.in_(job_ids), Job.c.settled, ~late)


def removable(conn: Connection, job_ids: Sequence[int], until: float) -> list[int]:
    """Those of `settled` that no bucket still needs: one that was made for such a job, to be temporary, is removed by
    the last job that uses it."""
    pending = exists().where(
        Buckets.c.job_id == Job.c.id, Buckets.c.created, Buckets.c.persistent.is_(False), Buckets.c.removed_at.is_(None)
    )
    return list(conn.execute(select(Job.c.id).where(*_over(job_ids, until), ~pending).order_by(Job.c.id)).scalars())


def drop_events(conn: Connection, job_ids: Sequence[int], most: int) -> int:
    """Remove up to `most` lines of these jobs' timelines. Returns how many."""
    return _drop(conn, EventT, EventT.c.job_id.in_(job_ids), most)


def drop_intents(conn: Connection, job_ids: Sequence[int], most: int) -> int:
    """Remove up to `most` of these jobs' intents, which are all closed. Returns how many."""
    return _drop(conn, Intents, Intents.c.job_id.in_(job_ids), most)


def drop_jobs(conn: Connection, job_ids: Sequence[int], until: float) -> int:
    """Remove those of the jobs that are `removable` with all that is left of them. Returns how many.

    What was said of a bucket that outlives its job stays: that it shall persist is what keeps it from other jobs.
    """
    ids = removable(conn, job_ids, until)
    if not ids:
        return 0
    tasks = conn.execute(delete(Task).where(Task.c.job_id.in_(ids)).returning(Task.c.status)).scalars()
    counts.note_removed(conn, Counter(tasks))
    for table in (EventT, Intents, Node, Attempt, Letters, Connections, Refusals):
        conn.execute(delete(table).where(table.c.job_id.in_(ids)))
    conn.execute(delete(Buckets).where(Buckets.c.job_id.in_(ids), Buckets.c.removed_at.is_not(None)))
    return conn.execute(delete(Job).where(Job.c.id.in_(ids))).rowcount


def specs(conn: Connection, after: tuple[int, int], limit: int) -> list[tuple[int, int, str]]:
    """The next tasks (job, index, spec as text), in order."""
    key = tuple_(Task.c.job_id, Task.c.index)
    query = select(Task.c.job_id, Task.c.index, cast(Task.c.spec, Text)).where(key > after)
    return [(row[0], row[1], row[2]) for row in conn.execute(query.order_by(Task.c.job_id, Task.c.index).limit(limit))]


def _drop(conn: Connection, table: Any, where: ColumnElement[bool], most: int) -> int:
    # Read first: a transaction that finds nothing to remove keeps no writer waiting.
    some = list(conn.execute(select(table.c.id).where(where).limit(most)).scalars())
    return conn.execute(delete(table).where(table.c.id.in_(some))).rowcount if some else 0
