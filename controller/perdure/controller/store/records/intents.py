"""Intents: external actions, recorded in the transaction that decides on them, before they are performed.

An intent is open until its outcome is recorded. A daemon that starts, or takes a job over, resumes its open intents.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from typing import Any

from sqlalchemy import Connection, bindparam, select, update

from perdure.controller.runtime.keys import AttemptKey
from perdure.controller.store.engine.batch_writer import WriteBatch
from perdure.controller.store.engine.database import insert_for
from perdure.controller.store.tables import IntentRow

Intents = IntentRow.__table__  # type: ignore[attr-defined]

_KEY = ("job_id", "task_index", "generation", "kind")
UNSAVED = 0
"""The id of an intent that is not in the database."""
_CLOSE = update(Intents).where(Intents.c.id == bindparam("intent"), Intents.c.done_at.is_(None))


_BATCH_SIZE = 1000  # jobs in one statement
_LAUNCH_TOKENS = select(Intents.c.job_id, Intents.c.task_index, Intents.c.generation, Intents.c.token).where(
    Intents.c.job_id.in_(bindparam("job_ids", expanding=True)), Intents.c.kind == "launch"
)


class IntentKind(StrEnum):
    PREPARE_STORAGE = "prepare-storage"
    LAUNCH = "launch"
    TERMINATE = "terminate"
    REMOVE_STORAGE = "remove-storage"


@dataclass(frozen=True)
class Intent:
    """An external action. `generation` is 0 if it belongs to the task and not to one attempt."""

    id: int
    job_id: int
    task: int
    generation: int
    kind: IntentKind
    token: str
    request: dict[str, Any]
    created_at: float
    try_count: int = 0

    @property
    def attempt_key(self) -> AttemptKey:
        """The key of the attempt; with generation 0, of the task."""
        return (self.job_id, self.task, self.generation)


def add_all(conn: Connection, wanted: Sequence[Intent]) -> list[Intent]:
    """Record intents, whose ids are UNSAVED. Returns them with their ids, without those that were recorded before."""
    if not wanted:
        return []
    values = [
        {
            **dict(zip(_KEY, (*intent.attempt_key, intent.kind.value), strict=True)),
            "token": intent.token,
            "request": intent.request,
            "created_at": intent.created_at,
            "try_count": 0,
        }
        for intent in wanted
    ]
    new = {tuple(key): id for id, *key in conn.execute(_insert(conn.dialect.name), values)}
    recorded = ((intent, new.get((*intent.attempt_key, intent.kind.value))) for intent in wanted)
    return [replace(intent, id=id) for intent, id in recorded if id is not None]


@cache
def _insert(dialect: str) -> Any:
    new = insert_for(dialect, Intents).on_conflict_do_nothing(index_elements=list(_KEY))
    return new.returning(Intents.c.id, *(Intents.c[name] for name in _KEY))


def open_intents(conn: Connection, job_ids: list[int]) -> list[Intent]:
    """The open intents of these jobs. `try_count` is one more than recorded, since a crash may have cut off a try."""
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
            try_count=r.try_count + 1,
        )
        for r in rows
    ]


def launch_tokens(conn: Connection, job_ids: Collection[int]) -> dict[AttemptKey, str]:
    """The token of every launch of these jobs."""
    tokens: dict[AttemptKey, str] = {}
    ids = sorted(job_ids)
    for start in range(0, len(ids), _BATCH_SIZE):
        rows = conn.execute(_LAUNCH_TOKENS, {"job_ids": ids[start : start + _BATCH_SIZE]})
        tokens.update({(row.job_id, row.task_index, row.generation): row.token for row in rows})
    return tokens


def complete(writes: WriteBatch, intent_id: int, *, outcome: str, error: str | None, now: float) -> None:
    """Record the outcome unless one was recorded before."""
    writes.add(_CLOSE, {"intent": intent_id, "done_at": now, "outcome": outcome, "error": error})


def record_failed_try(conn: Connection, intent_id: int, *, error: str, wake_at: float) -> None:
    """Record a try without an outcome."""
    values = {"try_count": Intents.c.try_count + 1, "error": error, "wake_at": wake_at}
    conn.execute(update(Intents).where(Intents.c.id == intent_id).values(**values))
