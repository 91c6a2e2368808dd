"""Letters: what came to one daemon for a job that is in another's hands, kept until its turn is recorded."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Text, bindparam, cast, delete, exists, insert, literal, select
from sqlalchemy.types import JSON, Float

from perdure.controller.store import wake
from perdure.controller.store.jobs import Job
from perdure.controller.store.tables import LetterRow
from perdure.controller.store.wake import Topic

Letters = LetterRow.__table__  # type: ignore[attr-defined]

_WAITING = (
    select(Letters.c.id, Letters.c.job_id, cast(Letters.c.body, Text).label("said"))  # read only if it is wanted
    .join(Job, Job.c.id == Letters.c.job_id)
    .where(Job.c.owner == bindparam("owner"), Job.c.settled.is_(False), Letters.c.id > bindparam("after"))
    .order_by(Letters.c.id)
    .limit(bindparam("most"))
)

_PUT = insert(Letters).from_select(
    ["job_id", "at", "body"],
    select(Job.c.id, bindparam("now", type_=Float), bindparam("what", type_=JSON)).where(
        Job.c.id == bindparam("to_job"), Job.c.settled.is_(False)
    ),
)
_ADDRESSED = (
    select(Letters.c.job_id)
    .where(Letters.c.job_id.in_(bindparam("job_ids", expanding=True)), Letters.c.at > bindparam("since"))
    .distinct()
)
_AT_ONCE = 1000  # parameters of one statement

_TAKE = delete(Letters).where(Letters.c.id.in_(bindparam("letters", expanding=True)))
_DROP_SETTLED = delete(Letters).where(exists().where(Job.c.id == Letters.c.job_id, Job.c.settled))


@dataclass(frozen=True)
class Letter:
    """`body` is what `perdure.controller.mail` made of a turn."""

    id: int
    job_id: int
    body: dict[str, Any]


def put(conn: Connection, job_id: int, body: dict[str, Any], now: float) -> bool:
    """Leave a letter for whoever owns the job. False if the job is settled, or unknown: then there is nobody."""
    unsettled = select(Job.c.id, literal(now, Float), literal(body, JSON)).where(
        Job.c.id == job_id, Job.c.settled.is_(False)
    )
    letter = insert(Letters).from_select(["job_id", "at", "body"], unsettled).returning(Letters.c.id)
    written = conn.execute(letter).first() is not None
    if written:
        wake.notify(conn, Topic.LETTER, job_id)
    return written


def put_each(conn: Connection, told: Sequence[tuple[int, dict[str, Any]]], now: float) -> None:
    """`put` for several letters (job, body), in this order."""
    conn.execute(_PUT, [{"to_job": job_id, "now": now, "what": body} for job_id, body in told])
    wake.notify_all(conn, Topic.LETTER, list(dict.fromkeys(job_id for job_id, _ in told)))


def put_all(conn: Connection, job_ids: Sequence[int], body: dict[str, Any], now: float) -> int:
    """Leave the same letter for the owners of many jobs, who find it at their next look. Returns how many were left:
    for those that are not settled."""
    left = 0
    for start in range(0, len(job_ids), _AT_ONCE):
        some = Job.c.id.in_(job_ids[start : start + _AT_ONCE])
        unsettled = select(Job.c.id, literal(now, Float), literal(body, JSON)).where(some, Job.c.settled.is_(False))
        left += conn.execute(insert(Letters).from_select(["job_id", "at", "body"], unsettled)).rowcount
    return left


def addressed(conn: Connection, job_ids: Collection[int], since: float) -> set[int]:
    """Those of these jobs that have letters which were written since then."""
    ids = list(job_ids)
    parts = (ids[start : start + _AT_ONCE] for start in range(0, len(ids), _AT_ONCE))
    return {
        job_id for part in parts for job_id in conn.execute(_ADDRESSED, {"job_ids": part, "since": since}).scalars()
    }


def waiting(conn: Connection, owner: str, limit: int = 1000, but: Collection[int] = (), after: int = 0) -> list[Letter]:
    """The letters for the jobs of `owner` `but` these, `after` the letter with this id, as they came."""
    rows = conn.execute(_WAITING, {"owner": owner, "most": limit + len(but), "after": after})
    return [Letter(row.id, row.job_id, json.loads(row.said)) for row in rows if row.id not in but][:limit]


def take(conn: Connection, taken: Sequence[int]) -> bool:
    """Take letters, as a part of the transaction that records their turns. False if a turn was recorded before."""
    return not taken or conn.execute(_TAKE, {"letters": list(taken)}).rowcount == len(taken)


def drop_settled(conn: Connection) -> int:
    """Remove letters that came too late. Returns how many."""
    return conn.execute(_DROP_SETTLED).rowcount
