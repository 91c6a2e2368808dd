"""What the workloads printed, in the database: any daemon may write a node's log on, and any may read it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, Connection, Engine, delete, insert, select, tuple_

from holdfast.controller.keyring import AttemptKey
from holdfast.controller.nodelogs import Chunk
from holdfast.controller.store import wake
from holdfast.controller.store.database import insert_into
from holdfast.controller.store.tables import LogChunkRow, LogRow
from holdfast.controller.store.wake import Topic

Heads = LogRow.__table__  # type: ignore[attr-defined]
Chunks = LogChunkRow.__table__  # type: ignore[attr-defined]

CHUNK_BYTES = 2**20
_REMOVED_AT_ONCE = 50


class SharedLogs:
    """Logs of every node, in rows of at most 1 MiB.

    Whoever appends to an attempt's log holds its head row until the end of the transaction: so numbers are given in the
    order of commits, and a reader who has seen number n will never be shown an earlier one.
    """

    def __init__(self, database: Engine) -> None:
        self._database = database

    def size(self, key: AttemptKey, rank: int) -> int:
        with self._database.connect() as conn:
            return _size(conn, key, rank)

    def append(self, key: AttemptKey, rank: int, offset: int, data: bytes) -> int:
        with self._database.begin() as conn:
            count = _lock(conn, key)
            size = _size(conn, key, rank)
            fresh = data[size - offset :] if offset <= size else b""
            for start in range(0, len(fresh), CHUNK_BYTES):
                piece = fresh[start : start + CHUNK_BYTES]
                add(conn, key, number=count, rank=rank, start=size + start, data=piece)
                count += 1
            if fresh:
                conn.execute(Heads.update().where(*_is(Heads, key)).values(chunks=count))
                wake.notify(conn, Topic.LOG, key[0])
            return size + len(fresh)

    def reader(self, key: AttemptKey) -> RowReader:
        return RowReader(self._database, key)

    def read(self, key: AttemptKey, chunk: Chunk) -> bytes:
        end = chunk.offset + chunk.length
        wanted = (Chunks.c.rank == chunk.rank, Chunks.c.start >= chunk.offset, Chunks.c.start < end)
        query = select(Chunks.c.data).where(*_is(Chunks, key), *wanted).order_by(Chunks.c.start)
        with self._database.connect() as conn:
            return b"".join(conn.execute(query).scalars())

    def remove(self, job_id: int) -> bool:
        key = tuple_(Chunks.c.task_index, Chunks.c.generation, Chunks.c.number)
        some = select(Chunks.c.task_index, Chunks.c.generation, Chunks.c.number).where(Chunks.c.job_id == job_id)
        with self._database.begin() as conn:
            gone = delete(Chunks).where(Chunks.c.job_id == job_id, key.in_(some.limit(_REMOVED_AT_ONCE)))
            if conn.execute(gone).rowcount:
                return True
            return conn.execute(delete(Heads).where(Heads.c.job_id == job_id)).rowcount > 0


@dataclass
class RowReader:
    """Reads on from the number at which it stopped. What one rank said in a row is one chunk, up to 1 MiB."""

    database: Engine
    key: AttemptKey
    next_number: int = 0

    def new(self) -> list[Chunk]:
        query = select(Chunks.c.number, Chunks.c.rank, Chunks.c.start, Chunks.c.length)
        later = Chunks.c.number >= self.next_number
        with self.database.connect() as conn:
            rows = conn.execute(query.where(*_is(Chunks, self.key), later).order_by(Chunks.c.number)).all()
        found: list[Chunk] = []
        for row in rows:
            self.next_number = row.number + 1
            last = found[-1] if found else None
            if last and last.rank == row.rank and last.length + row.length <= CHUNK_BYTES:
                found[-1] = Chunk(row.rank, last.offset, last.length + row.length)
            else:
                found.append(Chunk(row.rank, row.start, row.length))
        return found


def add(conn: Connection, key: AttemptKey, *, number: int, rank: int, start: int, data: bytes) -> None:
    """Write one piece, under the lock of the attempt's head row."""
    where = dict(zip(("job_id", "task_index", "generation"), key, strict=True))
    piece = {"number": number, "rank": rank, "start": start, "length": len(data), "data": data}
    conn.execute(insert(Chunks).values(**where, **piece))


def set_count(conn: Connection, key: AttemptKey, chunks: int) -> None:
    """Make the head row of an attempt whose `chunks` pieces were written by `add`."""
    where = dict(zip(("job_id", "task_index", "generation"), key, strict=True))
    conn.execute(insert(Heads).values(**where, chunks=chunks))


def digest_of(conn: Connection, key: AttemptKey, rank: int) -> str:
    """The sha256 of a node's log."""
    sha = hashlib.sha256()
    query = select(Chunks.c.data).where(*_is(Chunks, key), Chunks.c.rank == rank).order_by(Chunks.c.start)
    for data in conn.execute(query, execution_options={"yield_per": 8}).scalars():
        sha.update(data)
    return sha.hexdigest()


def _lock(conn: Connection, key: AttemptKey) -> int:
    """Hold the head row of the attempt; how many pieces there are."""
    where = dict(zip(("job_id", "task_index", "generation"), key, strict=True))
    conn.execute(insert_into(conn, Heads).values(**where, chunks=0).on_conflict_do_nothing())
    return int(conn.execute(select(Heads.c.chunks).where(*_is(Heads, key)).with_for_update()).scalar_one())


def _size(conn: Connection, key: AttemptKey, rank: int) -> int:
    last = select(Chunks.c.start + Chunks.c.length).where(*_is(Chunks, key), Chunks.c.rank == rank)
    return int(conn.execute(last.order_by(Chunks.c.start.desc()).limit(1)).scalar() or 0)


def _is(table: Any, key: AttemptKey) -> tuple[ColumnElement[bool], ...]:
    return (table.c.job_id == key[0], table.c.task_index == key[1], table.c.generation == key[2])
