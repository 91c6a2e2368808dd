"""Intents: what is to be done outside, written down in the transaction that decided it.

An intent is open until its outcome is recorded. Open ones are taken up again at every start.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Any

from sqlalchemy import Connection, bindparam, select, update

from perdure.controller.store.database import insert_for
from perdure.controller.store.tables import IntentRow
from perdure.controller.store.writes import Writes

Intents = IntentRow.__table__  # type: ignore[attr-defined]

_KEY = ("job_id", "task_index", "generation", "kind")
_CLOSE = update(Intents).where(Intents.c.id == bindparam("intent"), Intents.c.done_at.is_(None))


class IntentKind(StrEnum):
    PREPARE_STORAGE = "prepare-storage"
    LAUNCH = "launch"
    TERMINATE = "terminate"
    REMOVE_STORAGE = "remove-storage"


@dataclass(frozen=True)
class Intent:
    """`generation` is 0 for what belongs to a task rather than to an attempt."""

    id: int
    job_id: int
    task: int
    generation: int
    kind: IntentKind
    token: str
    request: dict[str, Any]
    created_at: float
    tries: int = 0


def add(
    conn: Connection,
    *,
    key: tuple[int, int, int],
    kind: IntentKind,
    token: str,
    request: dict[str, Any],
    now: float,
) -> Intent | None:
    """Write an intent down. None if the same was written down before."""
    job_id, task, generation = key
    same = {"job_id": job_id, "task_index": task, "generation": generation, "kind": kind.value}
    values = {**same, "token": token, "request": request, "created_at": now, "tries": 0}
    new = conn.execute(_insert(conn.dialect.name), values).scalar_one_or_none()
    return Intent(new, job_id, task, generation, kind, token, request, now) if new is not None else None


@cache
def _insert(dialect: str) -> Any:
    return insert_for(dialect, Intents).on_conflict_do_nothing(index_elements=list(_KEY)).returning(Intents.c.id)


def open_intents(conn: Connection, job_ids: list[int]) -> list[Intent]:
    """What is open of these jobs. `tries` counts one more than is recorded: one may have been cut off."""
    rows = conn.execute(
        select(Intents).where(Intents.c.done_at.is_(None), Intents.c.job_id.in_(job_ids)).order_by(Intents.c.id)
    )
    return [
        Intent(
            id=r.id,
            job_id=r.job_id,
            task=r.task_index,
            generation=r.generation,
            kind=IntentKind(r.kind),
            token=r.token,
            request=r.request,
            created_at=r.created_at,
            tries=r.tries + 1,
        )
        for r in rows
    ]


def close(writes: Writes, intent_id: int, *, outcome: str, error: str | None, now: float) -> None:
    """Record the outcome, if it was not recorded before."""
    writes.put(_CLOSE, {"intent": intent_id, "done_at": now, "outcome": outcome, "error": error})


def tried(conn: Connection, intent_id: int, *, error: str, wake_at: float) -> None:
    """Record a try that settled nothing."""
    conn.execute(
        update(Intents).where(Intents.c.id == intent_id).values(tries=Intents.c.tries + 1, error=error, wake_at=wake_at)
    )
