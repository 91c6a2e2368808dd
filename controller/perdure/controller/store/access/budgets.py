"""Budgets of users: what their machines have cost in a calendar month (UTC), and what was reported of it."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, bindparam, case, func, literal, or_, select, update

from perdure.controller.store.access.users import Users
from perdure.controller.store.records.jobs import Attempt, Job, Node, Task
from perdure.recovery.statuses import TERMINAL, Status

WARNING_SHARE = 0.8
"""The share of a budget at which its user is warned, as with `max_cost` of a job."""
_HOUR_S = 3600.0
_MARGIN_S = 7 * 86_400.0  # machines may live longer than the task that has ended

_START = bindparam("start", type_=Node.c.launched_at.type)
_NOW = bindparam("now", type_=Node.c.launched_at.type)
_BEGUN = func.coalesce(Node.c.launched_at, Attempt.c.booted_at)
_ENDED_AT = func.coalesce(Node.c.ended_at, Attempt.c.gone_at, _NOW)
_BEGIN = case((_BEGUN > _START, _BEGUN), else_=_START)
_HOURS = case((_ENDED_AT > _BEGIN, (_ENDED_AT - _BEGIN) / _HOUR_S), else_=0.0)
_OF_TASK = (Attempt.c.job_id == Task.c.job_id) & (Attempt.c.task_index == Task.c.index)
_OF_ATTEMPT = (
    (Node.c.job_id == Attempt.c.job_id)
    & (Node.c.task_index == Attempt.c.task_index)
    & (Node.c.generation == Attempt.c.generation)
)
# The statuses are listed so that the indexes, which begin with them, are used.
_LIVE: ColumnElement[bool] = Task.c.status.in_([s.value for s in Status if s not in TERMINAL])
_ENDED: ColumnElement[bool] = Task.c.status.in_(sorted(s.value for s in TERMINAL))
_COSTS = (
    select(Job.c.user, func.sum(_HOURS * Attempt.c.offer["price_per_hour"].as_float()).label("usd"))
    .select_from(Task)
    .join(Job, Job.c.id == Task.c.job_id)
    .join(Attempt, _OF_TASK)
    .join(Node, _OF_ATTEMPT)
    .where(
        Job.c.user.in_(bindparam("users", expanding=True)),
        Job.c.cluster_job.is_(None),  # the jobs of a cluster run on machines that its host pays for
        _BEGUN.is_not(None),
        or_(_LIVE, _ENDED & (Task.c.ended_at > _START - literal(_MARGIN_S))),
    )
    .group_by(Job.c.user)
)


def month_of(now: float) -> str:
    """The calendar month of a time (UTC), such as 2026-11."""
    return f"{datetime.fromtimestamp(now, UTC):%Y-%m}"


def month_start(now: float) -> float:
    """When the calendar month of a time began, in epoch seconds."""
    at = datetime.fromtimestamp(now, UTC)
    return datetime(at.year, at.month, 1, tzinfo=UTC).timestamp()


def spent(conn: Connection, names: Collection[str], now: float) -> dict[str, float]:
    """User → what the machines of their jobs and clusters have cost in the month of `now`, in USD."""
    if not names:
        return {}
    rows = conn.execute(_COSTS, {"users": list(names), "start": month_start(now), "now": now})
    return {**dict.fromkeys(names, 0.0), **{row.user: float(row.usd or 0.0) for row in rows}}


def mark(conn: Connection, name: str, column: str, month: str) -> bool:
    """Set `warned_month` or `spent_month`. False if it was set before: another controller has reported it."""
    wanted = Users.c.name == name, Users.c.budget_usd.is_not(None)
    is_new = or_(Users.c[column].is_(None), Users.c[column] != month)
    return bool(conn.execute(update(Users).where(*wanted, is_new).values({column: month})).rowcount)


def unmark(conn: Connection, name: str, month: str) -> None:
    """The budget is not spent after all: it was raised."""
    conn.execute(update(Users).where(Users.c.name == name, Users.c.spent_month == month).values(spent_month=None))


def blocked(conn: Connection, now: float) -> dict[str, str]:
    """User → why no new job of theirs may begin: the budget of this month is spent."""
    month = month_of(now)
    rows = conn.execute(select(Users).where(Users.c.spent_month == month, Users.c.budget_usd.is_not(None)))
    return {row.name: reason(row, month) for row in rows}


def reason(user: Row[Any], month: str) -> str:
    """What is said to a user whose budget is spent."""
    return f"{user.name} has spent the budget of {user.budget_usd:g} USD for {month}"
