"""Lists the attempts whose logs make up the log of a job, in one statement, since followers repeat it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Engine, Row, and_, bindparam, func, or_, select

from perdure.controller.store.records.cluster_slots import Slot
from perdure.controller.store.records.jobs import Attempt, Job, Node, Task, TimelineEvent

_ATTEMPT = ("generation", "state", "reason", "requested_at", "offer", "booted_at")
_NODES = (
    select(func.count())
    .where(*(Node.c[name] == Attempt.c[name] for name in ("job_id", "task_index", "generation")))
    .scalar_subquery()
)
_QUERY = (
    select(Task.c.index.label("task_index"), Task.c.name, Task.c.status, *(Attempt.c[name] for name in _ATTEMPT))
    .add_columns(_NODES.label("nodes"))
    .select_from(Task)
    .outerjoin(Attempt, and_(Attempt.c.job_id == Task.c.job_id, Attempt.c.task_index == Task.c.index))
    .where(Task.c.job_id == bindparam("job_id"))
    .order_by(Task.c.index, Attempt.c.generation)
)


_REFUSALS = select(TimelineEvent.c.task_index, TimelineEvent.c.generation, TimelineEvent.c.data).where(
    TimelineEvent.c.job_id == bindparam("job_id"), TimelineEvent.c.kind == "attempt.refused"
)
# A cluster is stopped by cancelling the job that holds its machines.
_STOPS = (
    select(Slot.c.task_index, Slot.c.generation)
    .distinct()
    .join(Job, Job.c.id == Slot.c.host_job_id)
    .where(Slot.c.job_id == bindparam("job_id"), or_(Slot.c.ended_at.is_(None), Job.c.cancel_at <= Slot.c.ended_at))
    .where(Job.c.cancel_at.is_not(None))
)


def load_stops(database: Engine, job_id: int) -> set[tuple[int, int]]:
    """The attempts of a cluster's job that ended because the cluster was stopped: task index and generation.

    Raises what the database raises.
    """
    with database.connect() as conn:
        return {(row.task_index, row.generation) for row in conn.execute(_STOPS, {"job_id": job_id})}


def load_refusals(database: Engine, job_id: int) -> dict[tuple[int, int], str]:
    """The clouds' error codes for a job's refused attempts, by task index and generation.

    A refusal without a code, or whose timeline entry was deleted, is missing. Raises what the database raises.
    """
    with database.connect() as conn:
        rows = conn.execute(_REFUSALS, {"job_id": job_id}).all()
    return {(row.task_index, row.generation): str(row.data["code"]) for row in rows if row.data.get("code")}


def load_log_attempts(database: Engine, job_id: int) -> Sequence[Row[Any]]:
    """A job's attempts in order: rows of `task_index`, `name` and `status` of the task, and `generation`, `state`,
    `reason`, `requested_at`, `offer`, `booted_at` and the number of `nodes` of the attempt.

    A task without attempts has one row, whose `generation` is None. Raises what the database raises.
    """
    if database.dialect.name == "postgresql":
        database = database.execution_options(isolation_level="AUTOCOMMIT")  # one round trip instead of three
    with database.connect() as conn:
        return list(conn.execute(_QUERY, {"job_id": job_id}))
