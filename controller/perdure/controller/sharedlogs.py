"""What the workloads printed, in the database: any daemon may write a node's log on, and any may read it."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakSet

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

from perdure.controller.keyring import AttemptKey
from perdure.controller.nodelogs import Chunk, Piece
from perdure.controller.rowreader import CHUNK_BYTES, Chunks, RowReader, Written
from perdure.controller.store import wake
from perdure.controller.store.database import insert_into, is_away
from perdure.controller.store.growing import MOST_AT_ONCE, Growth, grow
from perdure.controller.store.jobs import Node
from perdure.controller.store.tables import LogRow
from perdure.controller.store.wake import Topic

Heads = LogRow.__table__  # type: ignore[attr-defined]

_REMOVED_AT_ONCE = 50
_MOST_KNOWN = 20_000
_MOST_WRITERS = 32  # more than the pool has
_MOST_BYTES = 4 * 2**20  # in one statement
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

    def learn(self, conn: Connection, rank: int) -> None:
        """Of a rank, how much is kept, unless it is known."""
        if rank not in self.sizes:
            self.sizes[rank] = 0 if self.is_new else _size(conn, self.key, rank)

    def append(self, rank: int, offset: int, data: bytes) -> int:
        """Take up what of `data` is new; the rank's size then. It has been learned."""
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

    def written(self) -> Iterator[Written]:
        """The new chunks."""
        for number, (rank, start, data) in enumerate(self.new, self.chunks - len(self.new)):
            yield Written(number, rank, start, len(data), bytes(data))

    def rows(self) -> Iterator[dict[str, Any]]:
        """The new chunks, as they are written."""
        for row in self.written():
            yield {**dict(zip(_KEY, self.key, strict=True)), **row._asdict()}

    def growth(self) -> Growth:
        return Growth(self.key, self.chunks - len(self.new), self.new)

    def count(self) -> dict[str, int]:
        """Of `_COUNT`."""
        return {"count": self.chunks, **{f"key_{name}": value for name, value in zip(_KEY, self.key, strict=True)}}


class SharedLogs:
    """Logs of every node, in rows of at most 1 MiB.

    Whoever appends to an attempt's log holds its head row until the end of the transaction: so numbers are given in the
    order of commits, and a reader who has seen number n will never be shown an earlier one.

    `owner`: the lease of the daemon whose they are; without one, every daemon that lives is woken.
    """

    gather_s = 0.01

    def __init__(self, database: Engine, owner: str = "") -> None:
        self._database = database
        self._owner = owner
        self._known: dict[AttemptKey, _Known] = {}
        self._readers: dict[AttemptKey, WeakSet[RowReader]] = {}
        self._reading = threading.Lock()  # for `_readers`
        self._writers: dict[int, None] = {}
        is_postgres = database.dialect.name == "postgresql"
        self._each = database.execution_options(isolation_level="AUTOCOMMIT") if is_postgres else None

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
        answers = [None] * len(pieces) if self._each is None else self._grow(self._each, pieces)
        left = [piece for piece, answer in zip(pieces, answers, strict=True) if answer is None]
        held = iter(self._append_held(left) if left else ())
        return [next(held) if answer is None else answer for answer in answers]

    def _grow(self, database: Engine, pieces: Sequence[Piece]) -> list[int | None]:
        """Add what can be added by one statement: to logs that are as long as is known here. None for the others."""
        logs: dict[AttemptKey, _Log] = {}
        unknown: set[AttemptKey] = set()
        answers: list[int | None] = []
        for key, rank, offset, data in pieces:
            if key not in logs and (known := self._known.get(key)) is not None and known.chunks:
                logs[key] = _Log(key, known.chunks, dict(known.sizes), is_new=False)
            if key not in logs or offset > logs[key].sizes.get(rank, -1):  # beyond a gap, as far as is known
                unknown.add(key)
            answers.append(None if key in unknown else logs[key].append(rank, offset, data))
        fresh = [log for key, log in logs.items() if log.new and key not in unknown]
        while fresh:
            some, fresh = _share(fresh)
            with database.connect() as conn:
                self._writes_by(conn)
                grown = grow(conn, [log.growth() for log in some], self._owner)
            self._remember([some[nth] for nth in grown])
            unknown.update(log.key for nth, log in enumerate(some) if nth not in grown)
        return [None if piece[0] in unknown else answer for piece, answer in zip(pieces, answers, strict=True)]

    def _append_held(self, pieces: Sequence[Piece]) -> list[int]:
        with self._database.begin() as conn:
            self._writes_by(conn)
            logs = self._lock(conn, sorted({piece[0] for piece in pieces}))
            answers = []
            for key, rank, offset, data in pieces:
                logs[key].learn(conn, rank)
                answers.append(logs[key].append(rank, offset, data))
            grown = [log for log in logs.values() if log.new]
            if grown:
                conn.execute(insert(Chunks), [row for log in grown for row in log.rows()])
                conn.execute(_COUNT, [log.count() for log in grown])
                wake.notify_all(conn, Topic.LOG, sorted({log.key[0] for log in grown}))
        self._remember(logs.values())
        return answers

    def _writes_by(self, conn: Connection) -> None:
        if self._each is not None:
            process_id = conn.connection.driver_connection.info.backend_pid  # type: ignore[union-attr]
            self._writers.pop(process_id, None)
            self._writers[process_id] = None
            while len(self._writers) > _MOST_WRITERS:
                self._writers.pop(next(iter(self._writers)), None)

    def has_written(self, process_id: int) -> bool:
        """Whether it is a server's process through which this daemon has written: what that says is known here."""
        return process_id in self._writers

    def _remember(self, logs: Iterable[_Log]) -> None:
        """What was committed."""
        for log in logs:
            self._known.pop(log.key, None)
            self._known[log.key] = _Known(log.chunks, log.sizes)
            if log.new and log.key in self._readers:
                self._hand(log)
        while len(self._known) > _MOST_KNOWN:
            self._known.pop(next(iter(self._known)), None)

    def _hand(self, log: _Log) -> None:
        with self._reading:
            readers = list(self._readers.get(log.key, ()))
            if not readers:
                self._readers.pop(log.key, None)
        rows = list(log.written())
        for reader in readers:
            reader.hand(rows)

    def _lock(self, conn: Connection, keys: Sequence[AttemptKey]) -> dict[AttemptKey, _Log]:
        """Hold the head rows of these attempts, which are made where there are none; what is there already.

        None is held while others are made: whoever made one of those may wait for what is held here. SQLite locks by a
        write alone.
        """
        is_sqlite = conn.dialect.name == "sqlite"
        _make(conn, [key for key in keys if is_sqlite or key not in self._known])
        found = _locked(conn, keys)
        if gone := [key for key in keys if key not in found]:  # they were here once
            _make(conn, gone)
            found |= _locked(conn, gone)
        logs = {}
        for key, chunks in found.items():
            known = self._known.get(key)
            # Nobody has written meanwhile, or nobody ever has.
            sizes = dict(known.sizes) if known is not None and known.chunks == chunks else {}
            logs[key] = _Log(key, chunks, sizes, is_new=chunks == 0)
        return logs

    def reader(self, key: AttemptKey) -> RowReader:
        reader = RowReader(self._each or self._database, key)
        with self._reading:
            self._readers.setdefault(key, WeakSet()).add(reader)
        return reader

    def read(self, key: AttemptKey, chunk: Chunk) -> bytes:
        end = chunk.offset + chunk.length
        wanted = (Chunks.c.rank == chunk.rank, Chunks.c.start >= chunk.offset, Chunks.c.start < end)
        query = select(Chunks.c.data).where(*_is(Chunks, key), *wanted).order_by(Chunks.c.start)
        with (self._each or self._database).connect() as conn:
            return b"".join(conn.execute(query).scalars())

    def remove(self, job_id: int) -> bool:
        key = tuple_(Chunks.c.task_index, Chunks.c.generation, Chunks.c.number)
        some = select(Chunks.c.task_index, Chunks.c.generation, Chunks.c.number).where(Chunks.c.job_id == job_id)
        with self._database.begin() as conn:
            gone = delete(Chunks).where(Chunks.c.job_id == job_id, key.in_(some.limit(_REMOVED_AT_ONCE)))
            if conn.execute(gone).rowcount:
                return True
            return conn.execute(delete(Heads).where(Heads.c.job_id == job_id)).rowcount > 0


def _share(logs: Sequence[_Log]) -> tuple[list[_Log], list[_Log]]:
    """What one statement can bear, at least one log; and the rest."""
    count = size = 0
    for log in logs[:MOST_AT_ONCE]:
        size += log.growth().size
        if count and size > _MOST_BYTES:
            break
        count += 1
    return list(logs[:count]), list(logs[count:])


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


def _make(conn: Connection, keys: Sequence[AttemptKey]) -> None:
    """Make the head rows that are not there. `keys`: in order."""
    if keys:
        rows = [{**dict(zip(_KEY, key, strict=True)), "chunks": 0} for key in keys]
        conn.execute(insert_into(conn, Heads).on_conflict_do_nothing(), rows)


def _locked(conn: Connection, keys: Sequence[AttemptKey]) -> dict[AttemptKey, int]:
    """Hold the head rows that there are; how many pieces each has."""
    return {(row.job_id, row.task_index, row.generation): row.chunks for row in conn.execute(_LOCK, {"keys": keys})}


def _size(conn: Connection, key: AttemptKey, rank: int) -> int:
    last = select(Chunks.c.start + Chunks.c.length).where(*_is(Chunks, key), Chunks.c.rank == rank)
    return int(conn.execute(last.order_by(Chunks.c.start.desc()).limit(1)).scalar() or 0)


def _is(table: Any, key: AttemptKey) -> tuple[ColumnElement[bool], ...]:
    return (table.c.job_id == key[0], table.c.task_index == key[1], table.c.generation == key[2])
