"""Counts the machines and jobs that quotas limit, over all controllers that share the database."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from sqlalchemy import Connection, Engine, bindparam, func, select

from perdure.controller.runtime.clock import Clock
from perdure.controller.runtime.keys import AttemptKey
from perdure.controller.store.access import budgets, users
from perdure.controller.store.records.jobs import Attempt, Job, Node, Task
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
_RUNNING_OR_RECOVERING = (Status.RUNNING.value, Status.RECOVERING.value)
_USERS = select(Job.c.id, Job.c.user).where(
    Job.c.finalized.is_(False),
    select(Task.c.job_id).where(Task.c.job_id == Job.c.id, Task.c.status.in_(_RUNNING_OR_RECOVERING)).exists()
    | select(Attempt.c.job_id)
    .where(
        Attempt.c.job_id == Job.c.id,
        Attempt.c.state.not_in((AttemptState.REQUESTED.value, AttemptState.STOPPED.value, AttemptState.GONE.value)),
    )
    .exists(),
)
_REQUESTED = select(*_KEY).where(
    Attempt.c.state == AttemptState.REQUESTED.value, Attempt.c.job_id.in_(bindparam("job_ids", expanding=True))
)
_OF_USER = (
    select(func.count(Task.c.job_id.distinct()))
    .join(Job, Job.c.id == Task.c.job_id)
    .where(Task.c.status.in_([s.value for s in Status if not s.is_terminal]), Job.c.user == bindparam("user"))
)
_QUOTA_LOCK = 0x70657264  # with the user: an advisory lock, held by transactions that count jobs before they add some


@dataclass(frozen=True)
class Usage:
    """The recorded usage."""

    #: The cloud and the number of machines of each attempt whose machines exist, or may exist.
    machines: dict[AttemptKey, tuple[str, int]] = field(default_factory=dict)
    #: The user of each job that has machines, or that has had some and is being recovered.
    users: dict[int, str] = field(default_factory=dict)
    #: The attempts, of those in question, whose launch has no outcome yet.
    requested: frozenset[AttemptKey] = frozenset()
    #: User → how many of their jobs may have machines, where it is not what config.yaml says.
    max_running: dict[str, int] = field(default_factory=dict)
    #: User → why no new job of theirs may begin.
    blocked: dict[str, str] = field(default_factory=dict)


def read_usage(conn: Connection, launches: Collection[AttemptKey]) -> Usage:
    """The usage of all controllers. `launches`: the launches to look up for `Usage.requested`."""
    machines = {(r.job_id, r.task_index, r.generation): (r.cloud, r.machines) for r in conn.execute(_MACHINES)}
    users = {row.id: row.user for row in conn.execute(_USERS)}
    rows = conn.execute(_REQUESTED, {"job_ids": sorted({key[0] for key in launches})}) if launches else ()
    return Usage(machines, users, frozenset((r.job_id, r.task_index, r.generation) for r in rows))


def count_unfinished(conn: Connection, user: str) -> int:
    """The number of jobs of `user` that have not ended.

    No other transaction adds one before this one ends. On SQLite, this transaction must have written before the call.
    """
    if conn.dialect.name == "postgresql":
        conn.execute(select(func.pg_advisory_xact_lock(_QUOTA_LOCK, func.hashtext(user))))
    return int(conn.execute(_OF_USER, {"user": user}).scalar_one())


def usage_reader(database: Engine, clock: Clock, *, always: bool = True) -> Callable[[Collection[AttemptKey]], Usage]:
    """`read_usage` in a connection of its own, with the limits of users. Without `always`, machines and jobs are only
    counted if a user has a limit on them."""

    def read_now(reserved: Collection[AttemptKey]) -> Usage:
        with database.connect() as conn:
            max_running, blocked = users.running_limits(conn), budgets.blocked(conn, clock.now())
            usage = read_usage(conn, reserved) if always or max_running else Usage()
            return replace(usage, max_running=max_running, blocked=blocked)

    return read_now
