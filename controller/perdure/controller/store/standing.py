"""What stands: the machines that there are or may be, whose jobs have them, and how many there are. Read for the bounds
on all of it."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Connection, bindparam, func, select

from perdure.controller.caps import Standing
from perdure.controller.keyring import AttemptKey
from perdure.controller.store.jobs import Attempt, Job, Node, Task
from perdure.recovery.statuses import AttemptState, Status

_KEY = (Attempt.c.job_id, Attempt.c.task_index, Attempt.c.generation)
_SAME = (
    (Node.c.job_id == Attempt.c.job_id)
    & (Node.c.task_index == Attempt.c.task_index)
    & (Node.c.generation == Attempt.c.generation)
)
_MACHINES = select(
    *_KEY,
    Attempt.c.offer["cloud"].as_string().label("cloud"),
    select(func.count()).select_from(Node).where(_SAME).scalar_subquery().label("machines"),
).where(Attempt.c.state.not_in((AttemptState.REQUESTED.value, AttemptState.GONE.value)))
_BETWEEN = (Status.RUNNING.value, Status.RECOVERING.value)
_USERS = select(Job.c.id, Job.c.user).where(
    Job.c.settled.is_(False),
    select(Task.c.job_id).where(Task.c.job_id == Job.c.id, Task.c.status.in_(_BETWEEN)).exists()
    | select(Attempt.c.job_id)
    .where(
        Attempt.c.job_id == Job.c.id,
        Attempt.c.state.not_in((AttemptState.REQUESTED.value, AttemptState.STOPPED.value, AttemptState.GONE.value)),
    )
    .exists(),
)
_ASKED = select(*_KEY).where(
    Attempt.c.state == AttemptState.REQUESTED.value, Attempt.c.job_id.in_(bindparam("job_ids", expanding=True))
)
_OF_USER = (
    select(func.count(Task.c.job_id.distinct()))
    .join(Job, Job.c.id == Task.c.job_id)
    .where(Task.c.status.in_([s.value for s in Status if not s.is_terminal]), Job.c.user == bindparam("user"))
)
_COUNTING = 0x686F6C64  # with the user: the advisory lock of those who count jobs before they add some


def standing(conn: Connection, asked: Collection[AttemptKey]) -> Standing:
    """Of all controllers that share the database; `asked`: launches whose fate is wanted."""
    machines = {(r.job_id, r.task_index, r.generation): (r.cloud, r.machines) for r in conn.execute(_MACHINES)}
    users = {row.id: row.user for row in conn.execute(_USERS)}
    rows = conn.execute(_ASKED, {"job_ids": sorted({key[0] for key in asked})}) if asked else ()
    return Standing(machines, users, frozenset((r.job_id, r.task_index, r.generation) for r in rows))


def unfinished(conn: Connection, user: str) -> int:
    """How many jobs of `user` have not ended; nobody else adds any until the transaction ends, which on SQLite has to
    have written something before."""
    if conn.dialect.name == "postgresql":
        conn.execute(select(func.pg_advisory_xact_lock(_COUNTING, func.hashtext(user))))
    return int(conn.execute(_OF_USER, {"user": user}).scalar_one())
