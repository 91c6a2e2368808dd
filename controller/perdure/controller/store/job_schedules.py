"""Reads and writes schedules of jobs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, delete, exists, insert, select, update

from perdure.controller.store.records.jobs import Task
from perdure.controller.store.tables import JobScheduleRow

Schedule = JobScheduleRow.__table__  # type: ignore[attr-defined]


# `of`: only a schedule of this user; None: of anybody. Names are those of the installation, so two users cannot have
# schedules of the same name.


def _named(name: str, of: str | None) -> tuple[ColumnElement[bool], ...]:
    return (Schedule.c.name == name, *(() if of is None else (Schedule.c.user == of,)))


def save(conn: Connection, name: str, columns: Mapping[str, Any], of: str | None = None) -> None:
    """Insert the schedule of that name, or change it. Raises IntegrityError if it is another user's."""
    if conn.execute(update(Schedule).where(*_named(name, of)).values(**columns)).rowcount == 0:
        conn.execute(insert(Schedule).values(name=name, last_result="", **columns))


def change(conn: Connection, name: str, of: str | None, **columns: Any) -> bool:
    """Returns whether there is a schedule of that name."""
    return conn.execute(update(Schedule).where(*_named(name, of)).values(**columns)).rowcount > 0


def advance(conn: Connection, schedule_id: int, due_at: float, **columns: Any) -> None:
    """Change a schedule, unless another controller has done so since it was due."""
    where = (Schedule.c.id == schedule_id, Schedule.c.next_at == due_at)
    conn.execute(update(Schedule).where(*where).values(last_due_at=due_at, **columns))


def remove(conn: Connection, name: str, of: str | None = None) -> bool:
    return conn.execute(delete(Schedule).where(*_named(name, of))).rowcount > 0


def find(conn: Connection, name: str, of: str | None = None) -> Row[Any] | None:
    return conn.execute(select(Schedule).where(*_named(name, of))).first()


def list_all(conn: Connection) -> list[Row[Any]]:
    """By name."""
    return list(conn.execute(select(Schedule).order_by(Schedule.c.name)))


def due(conn: Connection, now: float) -> list[Row[Any]]:
    query = select(Schedule).where(Schedule.c.paused.is_(False), Schedule.c.next_at <= now)
    return list(conn.execute(query.order_by(Schedule.c.next_at)))


def has_unfinished_tasks(conn: Connection, job_id: int) -> bool:
    return bool(conn.execute(select(exists().where(Task.c.job_id == job_id, Task.c.ended_at.is_(None)))).scalar())


def set_tasks(conn: Connection, schedule_id: int, sealed: bytes) -> None:
    conn.execute(update(Schedule).where(Schedule.c.id == schedule_id).values(tasks=sealed))
