"""The fast path of `SqlLogStore`: appends to logs in PostgreSQL, whose lengths the caller knows, with one statement."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from perdure.controller.runtime.keys import AttemptKey
from perdure.controller.store.engine.pg_notify import CHANNEL, MAX_IDS, Topic, payload

MAX_LOGS = MAX_IDS
# Every writer locks head rows in the order of their keys, so that no two wait for each other. A head row that has
# another number of chunks than `before` does not match, and nothing is appended to its log.
_APPEND = """
WITH requested AS (
    SELECT * FROM unnest(%(job_ids)s::int[], %(tasks)s::int[], %(generations)s::int[], %(before)s::int[],
        %(after)s::int[]) WITH ORDINALITY AS requested (job_id, task_index, generation, before, after, nth)
), locked AS (
    SELECT log_head.job_id, log_head.task_index, log_head.generation, requested.after, requested.nth
    FROM requested JOIN log_head USING (job_id, task_index, generation) WHERE log_head.chunks = requested.before
    ORDER BY log_head.job_id, log_head.task_index, log_head.generation FOR UPDATE OF log_head
), updated AS (
    UPDATE log_head SET chunks = locked.after FROM locked
    WHERE (log_head.job_id, log_head.task_index, log_head.generation)
        = (locked.job_id, locked.task_index, locked.generation)
    RETURNING locked.*
), added AS (
    INSERT INTO log_chunk (job_id, task_index, generation, number, rank, start, length, data)
    SELECT updated.job_id, updated.task_index, updated.generation, piece.number, piece.rank, piece.start, piece.length,
        substr(%(data)b, piece.at, piece.length)
    FROM unnest(%(nths)s::int[], %(numbers)s::int[], %(ranks)s::int[], %(starts)s::bigint[], %(lengths)s::int[],
        %(ats)s::int[]) AS piece (nth, number, rank, start, length, at) JOIN updated USING (nth)
)
SELECT coalesce(array_agg(nth), '{}'), CASE WHEN EXISTS (
    SELECT FROM controller WHERE id <> %(owner)s AND lease_until >= date_part('epoch', clock_timestamp())
) THEN pg_notify(%(channel)s, %(payload)s) END FROM updated
"""


@dataclass(frozen=True)
class LogAppend:
    """New chunks (rank, start in bytes, data) for an attempt's log that has `chunks` so far."""

    key: AttemptKey
    chunks: int
    new: Sequence[tuple[int, int, bytes | bytearray]]

    @property
    def size(self) -> int:
        return sum(len(data) for _, _, data in self.new)


def append_known(conn: Connection, appends: Sequence[LogAppend], owner: str) -> set[int]:
    """Append to at most `MAX_LOGS` logs, and notify the other live daemons (other than `owner`).

    Returns the positions in `appends` that succeeded. The other logs had another number of chunks than the caller
    expected, and are unchanged.

    `conn`: in autocommit mode.
    """
    keys = [append.key for append in appends]
    pieces, data = [], []
    position = 1  # in the joined data, as SQL counts
    for nth, append in enumerate(appends, 1):
        for number, (rank, start, piece) in enumerate(append.new, append.chunks):
            pieces.append((nth, number, rank, start, len(piece), position))
            data.append(piece)
            position += len(piece)
    parameters = {
        "job_ids": _array(key[0] for key in keys),
        "tasks": _array(key[1] for key in keys),
        "generations": _array(key[2] for key in keys),
        "before": _array(append.chunks for append in appends),
        "after": _array(append.chunks + len(append.new) for append in appends),
        "data": b"".join(data),
        "owner": owner,
        "channel": CHANNEL,
        "payload": payload(Topic.LOG, sorted({key[0] for key in keys})),
    }
    columns = zip(("nths", "numbers", "ranks", "starts", "lengths", "ats"), zip(*pieces, strict=True), strict=True)
    parameters |= {name: _array(values) for name, values in columns}
    (appended, _) = conn.exec_driver_sql(_APPEND, parameters).one()
    return {nth - 1 for nth in appended}


def _array(numbers: Iterable[int]) -> str:
    """An array literal: much cheaper than a list that psycopg adapts."""
    return "{" + ",".join(map(str, numbers)) + "}"
