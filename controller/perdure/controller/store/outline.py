"""What somebody who follows a job's log looks at again and again: read by one statement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Engine, Row, and_, bindparam, func, select

from perdure.controller.store.jobs import Attempt, Node, Task

_ATTEMPT = ("generation", "state", "reason", "requested_at", "offer")
_NODES = (
    select(func.count())
    .where(*(Node.c[name] == Attempt.c[name] for name in ("job_id", "task_index", "generation")))
    .scalar_subquery()
)
_OUTLINE = (
    select(Task.c.index.label("task_index"), Task.c.name, Task.c.status, *(Attempt.c[name] for name in _ATTEMPT))
    .add_columns(_NODES.label("nodes"))
    .select_from(Task)
    .outerjoin(Attempt, and_(Attempt.c.job_id == Task.c.job_id, Attempt.c.task_index == Task.c.index))
    .where(Task.c.job_id == bindparam("job_id"))
    .order_by(Task.c.index, Attempt.c.generation)
)


def outline(database: Engine, job_id: int) -> Sequence[Row[Any]]:
    """A job's tasks (`task_index`, `name`, `status`), in order, each with its attempts (`generation`, `state`,
    `reason`, `requested_at`, `offer`, and how many `nodes`), in order. A task that has none is there once, and its
    `generation` is None.

    Raises what the database raises.
    """
    if database.dialect.name == "postgresql":
        database = database.execution_options(isolation_level="AUTOCOMMIT")  # one round trip instead of three
    with database.connect() as conn:
        return list(conn.execute(_OUTLINE, {"job_id": job_id}))
