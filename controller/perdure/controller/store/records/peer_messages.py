"""Messages between daemons: events that one daemon received for a job that another one owns.

A message is kept until its event is recorded.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Text, bindparam, cast, delete, exists, insert, literal, select
from sqlalchemy.types import JSON, Float

from perdure.controller.store.engine import pg_notify
from perdure.controller.store.engine.pg_notify import Topic
from perdure.controller.store.records.jobs import Job
from perdure.controller.store.tables import PeerMessageRow

PeerMessages = PeerMessageRow.__table__  # type: ignore[attr-defined]

_PENDING = (
    # The body is text: it is parsed only if needed.
    select(PeerMessages.c.id, PeerMessages.c.job_id, cast(PeerMessages.c.body, Text).label("text"))
    .join(Job, Job.c.id == PeerMessages.c.job_id)
    .where(Job.c.owner == bindparam("owner"), Job.c.finalized.is_(False), PeerMessages.c.id > bindparam("after"))
    .order_by(PeerMessages.c.id)
    .limit(bindparam("max_messages"))
)

_ENQUEUE = insert(PeerMessages).from_select(
    ["job_id", "at", "body"],
    select(Job.c.id, bindparam("now", type_=Float), bindparam("body", type_=JSON)).where(
        Job.c.id == bindparam("to_job"), Job.c.finalized.is_(False)
    ),
)
_JOBS_WITH_MESSAGES = (
    select(PeerMessages.c.job_id)
    .where(PeerMessages.c.job_id.in_(bindparam("job_ids", expanding=True)), PeerMessages.c.at > bindparam("since"))
    .distinct()
)
_BATCH_SIZE = 1000  # parameters of one statement

_CONSUME = delete(PeerMessages).where(PeerMessages.c.id.in_(bindparam("ids", expanding=True)))
_DELETE_FINALIZED = delete(PeerMessages).where(exists().where(Job.c.id == PeerMessages.c.job_id, Job.c.finalized))


@dataclass(frozen=True)
class PeerMessage:
    """`body`: an event as `perdure.controller.peers.peer_messages` encodes it."""

    id: int
    job_id: int
    body: dict[str, Any]


def enqueue(conn: Connection, job_id: int, body: dict[str, Any], now: float) -> bool:
    """Send a message to the owner of the job. False if the job is finalized or unknown: then nobody would read it."""
    row = select(Job.c.id, literal(now, Float), literal(body, JSON)).where(
        Job.c.id == job_id, Job.c.finalized.is_(False)
    )
    message = insert(PeerMessages).from_select(["job_id", "at", "body"], row).returning(PeerMessages.c.id)
    is_sent = conn.execute(message).first() is not None
    if is_sent:
        pg_notify.notify(conn, Topic.MESSAGE, job_id)
    return is_sent


def enqueue_each(conn: Connection, messages: Sequence[tuple[int, dict[str, Any]]], now: float) -> None:
    """`enqueue` for several messages (job, body), in this order."""
    conn.execute(_ENQUEUE, [{"to_job": job_id, "now": now, "body": body} for job_id, body in messages])
    pg_notify.notify_all(conn, Topic.MESSAGE, list(dict.fromkeys(job_id for job_id, _ in messages)))


def enqueue_for_all(conn: Connection, job_ids: Sequence[int], body: dict[str, Any], now: float) -> int:
    """Send the same message for each of many jobs, except those that are finalized. Returns how many were sent.

    No daemon is notified: each finds the messages when it polls.
    """
    sent = 0
    for start in range(0, len(job_ids), _BATCH_SIZE):
        batch = Job.c.id.in_(job_ids[start : start + _BATCH_SIZE])
        rows = select(Job.c.id, literal(now, Float), literal(body, JSON)).where(batch, Job.c.finalized.is_(False))
        sent += conn.execute(insert(PeerMessages).from_select(["job_id", "at", "body"], rows)).rowcount
    return sent


def jobs_with_messages(conn: Connection, job_ids: Collection[int], since: float) -> set[int]:
    """The jobs, of these, that have messages sent after `since`."""
    ids = list(job_ids)
    batches = (ids[start : start + _BATCH_SIZE] for start in range(0, len(ids), _BATCH_SIZE))
    return {
        job_id
        for batch in batches
        for job_id in conn.execute(_JOBS_WITH_MESSAGES, {"job_ids": batch, "since": since}).scalars()
    }


def pending(
    conn: Connection, owner: str, limit: int = 1000, exclude: Collection[int] = (), after: int = 0
) -> list[PeerMessage]:
    """The messages for jobs of `owner` with an id above `after`, without those in `exclude`, by id."""
    rows = conn.execute(_PENDING, {"owner": owner, "max_messages": limit + len(exclude), "after": after})
    return [PeerMessage(row.id, row.job_id, json.loads(row.text)) for row in rows if row.id not in exclude][:limit]


def consume(conn: Connection, ids: Sequence[int]) -> bool:
    """Delete messages in the transaction that records their events. False if one of them was recorded before."""
    return not ids or conn.execute(_CONSUME, {"ids": list(ids)}).rowcount == len(ids)


def delete_for_finalized_jobs(conn: Connection) -> int:
    """Delete messages for jobs that were finalized before the messages arrived. Returns how many."""
    return conn.execute(_DELETE_FINALIZED).rowcount
