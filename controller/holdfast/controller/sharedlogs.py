"""What the workloads printed, in the database: any daemon may write a node's log on, and any may read it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Connection,
    Engine,
    bindparam,
    delete,
    insert,
    select,
    tuple_,
    update,
)
from sqlalchemy.exc import DBAPIError

from holdfast.controller.keyring import AttemptKey
from holdfast.controller.nodelogs import Chunk, Piece
from holdfast.controller.store import wake
from holdfast.controller.store.database import insert_into, is_away
from holdfast.controller.store.jobs import Node
from holdfast.controller.store.tables import LogChunkRow, LogRow
from holdfast.controller.store.wake import Topic

Heads = LogRow.__table__  # type: ignore[attr-defined]
Chunks = LogChunkRow.__table__  # type: ignore[attr-defined]

CHUNK_BYTES = 2**20
_REMOVED_AT_ONCE = 50
_MOST_KNOWN = 20_000
_KEY = ("job_id", "task_index", "generation")
_KEYS: BindParameter[list[AttemptKey]] = bindparam("keys", expanding=True)
_OF_HEAD = tuple(Heads.c[name] for name in _KEY)
_LOCK = select(*_OF_HEAD, Heads.c.chunks).where(tuple_(*_OF_HEAD).in_(_KEYS)).order_by(*_OF_HEAD).with_for_update()
_COUNT = (
    update(Heads).where(*(Heads.c[name] == bindparam(f"key_{name}") for name in _KEY)).values(chunks=bindparam("count"))
)
_END = (
    select(Chunks.c.start + Chunks.c.length)
    .where(*(Chunks.c[name] == Node.c[name] for name in (*_KEY, "rank")))
    .order_by(Chunks.c.start.desc())
    .limit(1)
    .scalar_subquery()
)
_SIZES = select(*(Node.c[name] for name in (*_KEY, "rank")), _END.label("size")).where(
    Node.c.job_id.in_(bindparam("job_ids", expanding=True))
)


@dataclass(frozen=True)
class _Known:
    """How long each rank's log was when the attempt had so many chunks."""

    chunks: int
    sizes: dict[int, int]


@dataclass
class _Log:
    """An attempt's log, held: what is there, by rank where it is known, and what is to be added to it."""

    key: AttemptKey
    chunks: int
    sizes: dict[int, int]
    is_new: bool
    new: list[tuple[int, int, bytearray]] = field(default_factory=list)  # rank, start, data

    def append(self, conn: Connection, rank: int, offset: int, data: bytes) -> int:
        """Take up what of `data` is new; the rank's size then."""
        if rank not in self.sizes:
            self.sizes[rank] = 0 if self.is_new else _size(conn, self.key, rank)
        size = self.sizes[rank]
        fresh = data[size - offset :] if offset <= size else b""
        for at in range(0, len(fresh), CHUNK_BYTES):
            self._add(rank, size + at, fresh[at : at + CHUNK_BYTES])
        self.sizes[rank] = size + len(fresh)
        return self.sizes[rank]

    def _add(self, rank: int, start: int, piece: bytes) -> None:
        if self.new and self.new[-1][0] == rank and len(self.new[-1][2]) + len(piece) <= CHUNK_BYTES:
            self.new[-1][2].extend(piece)
        else:
            self.new.append((rank, start, bytearray(piece)))
            self.chunks += 1

    def rows(self) -> Iterator[dict[str, Any]]:
        """The new chunks, as they are written."""
        first = self.chunks - len(self.new)
        for number, (rank, start, data) in enumerate(self.new, first):
            yield _row(self.key, number=number, rank=rank, start=start, data=bytes(data))

    def count(self) -> dict[str, int]:
        """Of `_COUNT`."""
        return {"count": self.chunks, **{f"key_{name}": value for name, value in zip(_KEY, self.key, strict=True)}}


class SharedLogs:
    """Logs of every node, in rows of at most 1 MiB.

    Whoever appends to an attempt's log holds its head row until the end of the transaction: so numbers are given in the
    order of commits, and a reader who has seen number n will never be shown an earlier one.
    """

    def __init__(self, database: Engine) -> None:
        self._database = database
        self._known: dict[AttemptKey, _Known] = {}

    def size(self, key: AttemptKey, rank: int) -> int:
        with self._database.connect() as conn:
            return _size(conn, key, rank)

    def sizes(self, places: Sequence[tuple[AttemptKey, int]]) -> list[int]:
        with self._database.connect() as conn:
            rows = conn.execute(_SIZES, {"job_ids": sorted({key[0] for key, _ in places})})
            found = {((r.job_id, r.task_index, r.generation), r.rank): r.size or 0 for r in rows}
            return [found[place] if place in found else _size(conn, *place) for place in places]

    def append(self, key: AttemptKey, rank: int, offset: int, data: bytes) -> int:
        return self._append([(key, rank, offset, data)])[0]

    def append_all(self, pieces: Sequence[Piece]) -> Sequence[int | Exception]:
        """In one transaction. Raises what the database raises while it is away."""
        try:
            return self._append(pieces)
        except DBAPIError as error:
            if is_away(error):
                raise
        return [self._alone(piece) for piece in pieces]

    def _alone(self, piece: Piece) -> int | Exception:
        try:
            return self.append(*piece)
        except DBAPIError as error:
            return error

    def _append(self, pieces: Sequence[Piece]) -> list[int]:
        with self._database.begin() as conn:
            logs = self._lock(conn, sorted({piece[0] for piece in pieces}))
            answers = [logs[key].append(conn, rank, offset, data) for key, rank, offset, data in pieces]
            grown = [log for log in logs.values() if log.new]
            if grown:
                conn.execute(insert(Chunks), [row for log in grown for row in log.rows()])
                conn.execute(_COUNT, [log.count() for log in grown])
                wake.notify_all(conn, Topic.LOG, sorted({log.key[0] for log in grown}))
        for log in logs.values():
            self._known.pop(log.key, None)
            self._known[log.key] = _Known(log.chunks, log.sizes)
        while len(self._known) > _MOST_KNOWN:
            self._known.pop(next(iter(self._known)))
        return answers

    def _lock(self, conn: Connection, keys: Sequence[AttemptKey]) -> dict[AttemptKey, _Log]:
        """Hold the head rows of these attempts, which are made where there are none; what is there already."""
        found = _locked(conn, keys) if conn.dialect.name == "postgresql" else {}  # SQLite locks by a write alone
        if new := [key for key in keys if key not in found]:
            rows = [{**dict(zip(_KEY, key, strict=True)), "chunks": 0} for key in new]
            conn.execute(insert_into(conn, Heads).on_conflict_do_nothing(), rows)
            found |= _locked(conn, new)
        logs = {}
        for key, chunks in found.items():
            known = self._known.get(key)
            # Nobody has written meanwhile, or nobody ever has.
            sizes = dict(known.sizes) if known is not None and known.chunks == chunks else {}
            logs[key] = _Log(key, chunks, sizes, is_new=chunks == 0)
        return logs

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
    conn.execute(insert(Chunks).values(**_row(key, number=number, rank=rank, start=start, data=data)))


def _row(key: AttemptKey, **piece: Any) -> dict[str, Any]:
    return {**dict(zip(_KEY, key, strict=True)), **piece, "length": len(piece["data"])}


def set_count(conn: Connection, key: AttemptKey, chunks: int) -> None:
    """Make the head row of an attempt whose `chunks` pieces were written by `add`."""
    where = dict(zip(_KEY, key, strict=True))
    conn.execute(insert(Heads).values(**where, chunks=chunks))


def digest_of(conn: Connection, key: AttemptKey, rank: int) -> str:
    """The sha256 of a node's log."""
    sha = hashlib.sha256()
    query = select(Chunks.c.data).where(*_is(Chunks, key), Chunks.c.rank == rank).order_by(Chunks.c.start)
    for data in conn.execute(query, execution_options={"yield_per": 8}).scalars():
        sha.update(data)
    return sha.hexdigest()


def _locked(conn: Connection, keys: Sequence[AttemptKey]) -> dict[AttemptKey, int]:
    """Hold the head rows that there are; how many pieces each has."""
    return {(row.job_id, row.task_index, row.generation): row.chunks for row in conn.execute(_LOCK, {"keys": keys})}


def _size(conn: Connection, key: AttemptKey, rank: int) -> int:
    last = select(Chunks.c.start + Chunks.c.length).where(*_is(Chunks, key), Chunks.c.rank == rank)
    return int(conn.execute(last.order_by(Chunks.c.start.desc()).limit(1)).scalar() or 0)


def _is(table: Any, key: AttemptKey) -> tuple[ColumnElement[bool], ...]:
    return (table.c.job_id == key[0], table.c.task_index == key[1], table.c.generation == key[2])
