"""Adds to logs in PostgreSQL in one statement, which is a transaction, where it is known how far they are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from perdure.controller.keyring import AttemptKey
from perdure.controller.store.wake import CHANNEL, MOST_IDS, Topic, payload

MOST_AT_ONCE = MOST_IDS
# Head rows are held in the order of their keys, as everybody holds them: so no two wait for each other. One that has
# more chunks than is known here is not found, and nothing is added to its log.
_GROW = """
WITH asked AS (
    SELECT * FROM unnest(%(job_ids)s::int[], %(tasks)s::int[], %(generations)s::int[], %(before)s::int[],
        %(after)s::int[]) WITH ORDINALITY AS asked (job_id, task_index, generation, before, after, nth)
), held AS (
    SELECT log.job_id, log.task_index, log.generation, asked.after, asked.nth
    FROM asked JOIN log USING (job_id, task_index, generation) WHERE log.chunks = asked.before
    ORDER BY log.job_id, log.task_index, log.generation FOR UPDATE OF log
), grown AS (
    UPDATE log SET chunks = held.after FROM held
    WHERE (log.job_id, log.task_index, log.generation) = (held.job_id, held.task_index, held.generation)
    RETURNING held.*
), added AS (
    INSERT INTO log_chunk (job_id, task_index, generation, number, rank, start, length, data)
    SELECT grown.job_id, grown.task_index, grown.generation, piece.number, piece.rank, piece.start, piece.length,
        substr(%(data)b, piece.at, piece.length)
    FROM unnest(%(nths)s::int[], %(numbers)s::int[], %(ranks)s::int[], %(starts)s::bigint[], %(lengths)s::int[],
        %(ats)s::int[]) AS piece (nth, number, rank, start, length, at) JOIN grown USING (nth)
)
SELECT coalesce(array_agg(nth), '{}'), CASE WHEN EXISTS (
    SELECT FROM controller WHERE id <> %(owner)s AND lease_until >= date_part('epoch', clock_timestamp())
) THEN pg_notify(%(channel)s, %(payload)s) END FROM grown
"""


@dataclass(frozen=True)
class Growth:
    """An attempt's log that has `chunks`, and is to get `new` ones: the rank, the byte at which it starts, the data."""

    key: AttemptKey
    chunks: int
    new: Sequence[tuple[int, int, bytes | bytearray]]

    @property
    def size(self) -> int:
        return sum(len(data) for _, _, data in self.new)


def grow(conn: Connection, grown: Sequence[Growth], owner: str) -> set[int]:
    """Add to these logs, at most `MOST_AT_ONCE`, and wake the daemons but `owner`, if others live.

    Which of them, by their places in `grown`, had as many chunks as is said, and have grown; the others are as they
    were.

    `conn`: commits each statement by itself.
    """
    keys = [growth.key for growth in grown]
    pieces, data = [], []
    at = 1
    for nth, growth in enumerate(grown, 1):
        for number, (rank, start, piece) in enumerate(growth.new, growth.chunks):
            pieces.append((nth, number, rank, start, len(piece), at))
            data.append(piece)
            at += len(piece)
    asked = {
        "job_ids": _array(key[0] for key in keys),
        "tasks": _array(key[1] for key in keys),
        "generations": _array(key[2] for key in keys),
        "before": _array(growth.chunks for growth in grown),
        "after": _array(growth.chunks + len(growth.new) for growth in grown),
        "data": b"".join(data),
        "owner": owner,
        "channel": CHANNEL,
        "payload": payload(Topic.LOG, sorted({key[0] for key in keys})),
    }
    columns = zip(("nths", "numbers", "ranks", "starts", "lengths", "ats"), zip(*pieces, strict=True), strict=True)
    asked |= {name: _array(values) for name, values in columns}
    (found, _) = conn.exec_driver_sql(_GROW, asked).one()
    return {nth - 1 for nth in found}


def _array(numbers: Iterable[int]) -> str:
    """As PostgreSQL reads it: much cheaper to write than a list is to adapt."""
    return "{" + ",".join(map(str, numbers)) + "}"
