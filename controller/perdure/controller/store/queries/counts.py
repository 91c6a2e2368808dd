"""Counts tasks by status: exactly, and cheaply among a million that have ended.

A task that has ended never changes. So the tasks that ended before some time are counted once in a while; the tasks
that ended since and those that have not are added at each request. Retention records what it deletes in
`purged_count`, in the same transaction, so every daemon can subtract it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import structlog
from sqlalchemy import ColumnElement, Connection, Engine, Select, func, literal, select, union_all

from perdure.controller.runtime.clock import Clock
from perdure.controller.store.engine.database import UNAVAILABLE, insert_into
from perdure.controller.store.records.jobs import Job, Task, is_managed
from perdure.controller.store.tables import PurgedCountRow
from perdure.recovery.statuses import TERMINAL, Status

log = structlog.get_logger(__name__)

PurgedCounts = PurgedCountRow.__table__  # type: ignore[attr-defined]

MARGIN_S = 900.0
"""How long after its `ended_at` an end may be committed: the clocks of daemons differ, and a database may be slow."""
RENEW_S = 3600.0
"""How long a count of the past is used. Retention deletes only tasks that ended longer ago than this and `MARGIN_S`, so
that every daemon has counted them as past."""

_MAX_USERS = 1_000  # whose counts are kept
_ENDED = sorted(s.value for s in TERMINAL)
_LIVE = [s.value for s in Status if s not in TERMINAL]


_IS_MANAGED = is_managed(Task.c.job_id)


@dataclass(frozen=True)
class PastCounts:
    """`ended`: the tasks by status that ended until `at`, including those that were deleted before."""

    at: float
    ended: Counter[str]


class TaskCounter:
    """Counts for one daemon, with a cache of the past. Safe to use from any thread."""

    def __init__(self) -> None:
        self._past: PastCounts | None = None
        self._past_of: dict[str, PastCounts] = {}  # by user

    def recount(self, conn: Connection, now: float) -> PastCounts:
        """Count the past: some tenths of a second for a million tasks. Raises what the database raises."""
        at = now - MARGIN_S
        self._past = past = PastCounts(at, _sum(conn, _ended(Task.c.ended_at <= at), _purged(1)))
        return past

    def tick(self, database: Engine, clock: Clock) -> None:
        """`recount` ahead of time, so that no request has to wait for it. Logs errors and raises none."""
        try:
            with database.connect() as conn:
                self.recount(conn, clock.now())
        except UNAVAILABLE as error:
            log.warning("database.unavailable", error=str(error))

    def by_status(self, conn: Connection, now: float, user: str | None = None) -> dict[str, int]:
        """The number of tasks of managed jobs of each status that any has. `now`: by the controller's clock. `user`:
        count only that user's, and no deleted ones."""
        if user is not None:
            return self._of_user(conn, now, user)
        past = self._past
        if past is None or not past.at <= now <= past.at + MARGIN_S + RENEW_S:
            past = self.recount(conn, now)
        counts = past.ended.copy()
        counts.update(_sum(conn, *_LIVE_COUNTS, _ended(Task.c.ended_at > past.at), _purged(-1)))
        return {status: count for status, count in counts.items() if count}

    def _of_user(self, conn: Connection, now: float, user: str) -> dict[str, int]:
        own = Task.c.job_id.in_(select(Job.c.id).where(Job.c.user == user))
        past = self._past_of.get(user)
        if past is None or not past.at <= now <= past.at + MARGIN_S + RENEW_S:
            if len(self._past_of) >= _MAX_USERS:
                self._past_of.clear()
            at = now - MARGIN_S
            self._past_of[user] = past = PastCounts(at, _sum(conn, _ended((Task.c.ended_at <= at) & own)))
        live = select(Task.c.status, func.count().label("tasks")).where(Task.c.status.in_(_LIVE), _IS_MANAGED, own)
        counts = past.ended.copy()
        counts.update(_sum(conn, live.group_by(Task.c.status), _ended((Task.c.ended_at > past.at) & own)))
        return {status: count for status, count in counts.items() if count}


def _ended(when: ColumnElement[bool]) -> Select[Any]:
    # The statuses are listed so that the index, which begins with them, is used.
    ended = select(Task.c.status, func.count().label("tasks")).where(Task.c.status.in_(_ENDED), when, _IS_MANAGED)
    return ended.group_by(Task.c.status)


def _purged(sign: int) -> Select[Any]:
    return select(PurgedCounts.c.status, (PurgedCounts.c.tasks * literal(sign)).label("tasks"))


def _live_of_parts(is_part: ColumnElement[bool]) -> Select[Any]:
    """The live tasks of these parts, negative."""
    status = Task.c.status + ""  # an expression, so that no database begins with the tasks
    parts = select(Job.c.id).where(is_part, Job.c.finalized.is_(False))
    live = select(status.label("status"), (-func.count()).label("tasks")).where(Task.c.job_id.in_(parts))
    return live.where(status.in_(_LIVE)).group_by(status)


# All live tasks, which an index alone tells, less those of parts, which have indexes of their own: to look up the job
# of each of ten thousand tasks would cost 5 ms.
_LIVE_COUNTS = (
    select(Task.c.status, func.count().label("tasks")).where(Task.c.status.in_(_LIVE)).group_by(Task.c.status),
    _live_of_parts(Job.c.cluster_id.is_not(None)),
    _live_of_parts(Job.c.service_id.is_not(None) & Job.c.cluster_id.is_(None)),
)


def _sum(conn: Connection, *parts: Select[Any]) -> Counter[str]:
    """The sums over all parts. One statement reads them, so they are consistent on both databases."""
    counts: Counter[str] = Counter()
    for status, tasks in conn.execute(union_all(*parts)):
        counts[status] += tasks
    return counts


def record_purged(conn: Connection, tasks: Mapping[str, int]) -> None:
    """Record how many ended tasks are deleted, by status. Part of the transaction that deletes them."""
    for status, count in tasks.items():
        row = insert_into(conn, PurgedCounts).values(status=status, tasks=count)
        added = {"tasks": PurgedCounts.c.tasks + count}
        conn.execute(row.on_conflict_do_update(index_elements=["status"], set_=added))
