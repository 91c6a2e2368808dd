"""How much a job has gone through, and its timeline by pages. Read-only."""

from __future__ import annotations

from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, Text, cast, func, or_, select

from perdure.controller.store.queries.job_listing import timeline_entry
from perdure.controller.store.records.jobs import Attempt, TimelineEvent
from perdure.recovery.reasons import PREEMPTIONS

CHECKPOINTS = "checkpoint.%"
_SEARCHED = ("kind", "message", "reason")


class HistoryCounts(NamedTuple):
    attempts: int
    events: int
    preemptions: int  # of attempts that ran


def counts_of(conn: Connection, job_id: int) -> HistoryCounts:
    of_job = Attempt.c.job_id == job_id
    preempted = Attempt.c.reason.in_(sorted(PREEMPTIONS)) & Attempt.c.running_at.is_not(None)
    attempts = conn.execute(select(func.count()).where(of_job)).scalar_one()
    preemptions = conn.execute(select(func.count()).where(of_job, preempted)).scalar_one()
    events = conn.execute(select(func.count()).where(TimelineEvent.c.job_id == job_id)).scalar_one()
    return HistoryCounts(attempts, events, preemptions)


def timeline_page(
    conn: Connection, job_id: int, *, before: int | None, limit: int, text: str, with_checkpoints: bool
) -> dict[str, Any]:
    """Entries before the one with number `before`, the newest first. `text`: only those that contain it."""
    of_job = TimelineEvent.c.job_id == job_id
    about_checkpoints = TimelineEvent.c.kind.like(CHECKPOINTS)
    which = [of_job]
    if not with_checkpoints:
        which.append(~about_checkpoints)
    if text:
        which.append(_contains(text))
    page = select(TimelineEvent).where(*which).order_by(TimelineEvent.c.id.desc()).limit(limit)
    if before is not None:
        page = page.where(TimelineEvent.c.id < before)
    rows = conn.execute(page).mappings().all()
    return {
        "entries": [{"id": row["id"], **timeline_entry(row)} for row in rows],
        "num_matching": conn.execute(select(func.count()).select_from(TimelineEvent).where(*which)).scalar_one(),
        "num_checkpoints": conn.execute(
            select(func.count()).select_from(TimelineEvent).where(of_job, about_checkpoints)
        ).scalar_one(),
    }


def _contains(text: str) -> ColumnElement[bool]:
    columns = [TimelineEvent.c[name] for name in _SEARCHED] + [cast(TimelineEvent.c.data, Text)]
    exact = [column.contains(text, autoescape=True) for column in columns]  # SQLite's `lower` knows ASCII only
    return or_(*exact, *(func.lower(column).contains(text.lower(), autoescape=True) for column in columns))
