"""How many tasks have which status: exact, and cheap among a million that have ended.

What has ended never changes. So those that ended before some time are counted once in a while and remembered; to them
are added those that ended since, and those that have not. What `retention` removed meanwhile is a row of `removed`,
written by the transaction that removed it, whichever daemon's that was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import structlog
from sqlalchemy import ColumnElement, Connection, Engine, Select, func, literal, select, union_all

from perdure.controller.clock import Clock
from perdure.controller.store.database import UNAVAILABLE, insert_into
from perdure.controller.store.jobs import Task
from perdure.controller.store.tables import RemovedRow
from perdure.recovery.statuses import TERMINAL, Status

log = structlog.get_logger(__name__)

Removed = RemovedRow.__table__  # type: ignore[attr-defined]

MARGIN_S = 900.0
"""How much later than it says an end may be committed: daemons' clocks differ, and a database may be slow."""
RENEW_S = 3600.0
"""Retention leaves alone what ended later than these two ago: it removes only what every daemon has counted as past."""

_ENDED = sorted(s.value for s in TERMINAL)
_LIVE = [s.value for s in Status if s not in TERMINAL]


@dataclass(frozen=True)
class Past:
    """`ended`: tasks by status that ended until `at`, and those that were removed before they were counted."""

    at: float
    ended: Counter[str]


class Counts:
    """Remembers the past for one daemon. Any thread may ask."""

    def __init__(self) -> None:
        self._past: Past | None = None

    def renew(self, conn: Connection, now: float) -> Past:
        """Count the past anew: some tenths of a second for a million tasks. Raises what the database raises."""
        at = now - MARGIN_S
        self._past = past = Past(at, _read(conn, _ended(Task.c.ended_at <= at), _removed(1)))
        return past

    def tick(self, database: Engine, clock: Clock) -> None:
        """`renew`, before somebody who asks has to wait for it. Raises nothing: who asks will hear of it."""
        try:
            with database.connect() as conn:
                self.renew(conn, clock.now())
        except UNAVAILABLE as error:
            log.warning("database.refused", error=str(error))

    def of(self, conn: Connection, now: float) -> dict[str, int]:
        """Tasks by status; those that nobody has are left out. `now`: by the controller's clock."""
        past = self._past
        if past is None or not past.at <= now <= past.at + MARGIN_S + RENEW_S:
            past = self.renew(conn, now)
        live = select(Task.c.status, func.count().label("tasks")).where(Task.c.status.in_(_LIVE))
        found = past.ended.copy()
        found.update(_read(conn, live.group_by(Task.c.status), _ended(Task.c.ended_at > past.at), _removed(-1)))
        return {status: count for status, count in found.items() if count}


def _ended(when: ColumnElement[bool]) -> Select[Any]:
    # The statuses are named for the sake of the index, which begins with them.
    ended = select(Task.c.status, func.count().label("tasks")).where(Task.c.status.in_(_ENDED), when)
    return ended.group_by(Task.c.status)


def _removed(sign: int) -> Select[Any]:
    return select(Removed.c.status, (Removed.c.tasks * literal(sign)).label("tasks"))


def _read(conn: Connection, *parts: Select[Any]) -> Counter[str]:
    """The sums of all parts, read by one statement: so they are of one moment, on either database."""
    found: Counter[str] = Counter()
    for status, tasks in conn.execute(union_all(*parts)):
        found[status] += tasks
    return found


def note_removed(conn: Connection, tasks: Mapping[str, int]) -> None:
    """As a part of the transaction that deletes tasks that ended: how many, by status."""
    for status, count in tasks.items():
        row = insert_into(conn, Removed).values(status=status, tasks=count)
        added = {"tasks": Removed.c.tasks + count}
        conn.execute(row.on_conflict_do_update(index_elements=["status"], set_=added))
