"""Stores the output of workloads in the database: every daemon can append to a node's log and read it."""

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
    func,
    insert,
    select,
    tuple_,
    update,
)
from sqlalchemy.exc import DBAPIError

from perdure.controller.runtime.keys import AttemptKey
from perdure.controller.store.engine import pg_notify
from perdure.controller.store.engine.database import insert_into, is_transient
from perdure.controller.store.engine.pg_notify import Topic
from perdure.controller.store.logs.postgres_append import MAX_LOGS, LogAppend, append_known
from perdure.controller.store.logs.protocol import Chunk, LogWrite, require_whole
from perdure.controller.store.logs.sql_reader import CHUNK_BYTES, Chunks, LogRow, RowReader
from perdure.controller.store.records.jobs import Node
from perdure.controller.store.tables import LogHeadRow

LogHeads = LogHeadRow.__table__  # type: ignore[attr-defined]

_DELETE_BATCH_SIZE = 50
_MAX_CACHED_LOGS = 20_000
_MAX_WRITERS = 32  # more than the connections of the pool
_MAX_STATEMENT_BYTES = 4 * 2**20
_KEY = ("job_id", "task_index", "generation")
_KEYS: BindParameter[list[AttemptKey]] = bindparam("keys", expanding=True)
_OF_HEAD = tuple(LogHeads.c[name] for name in _KEY)
_LOCK = select(*_OF_HEAD, LogHeads.c.chunks).where(tuple_(*_OF_HEAD).in_(_KEYS)).order_by(*_OF_HEAD).with_for_update()
_SET_COUNT = (
    update(LogHeads)
    .where(*(LogHeads.c[name] == bindparam(f"key_{name}") for name in _KEY))
    .values(chunks=bindparam("count"))
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
class _CachedSizes:
    """The sizes of the ranks' logs when the attempt's log had `chunks` chunks."""

    chunks: int
    sizes: dict[int, int]


@dataclass
class _Log:
    """An attempt's log while it is appended to: the sizes of the ranks' logs, as far as known, and the new chunks."""

    key: AttemptKey
    chunks: int
    sizes: dict[int, int]
    is_new: bool
    new: list[tuple[int, int, bytearray]] = field(default_factory=list)  # rank, start, data

    def load_size(self, conn: Connection, rank: int) -> None:
        """Read the size of a rank's log unless it is known."""
        if rank not in self.sizes:
            self.sizes[rank] = 0 if self.is_new else _size(conn, self.key, rank)

    def append(self, rank: int, offset: int, data: bytes) -> int:
        """Add the part of `data` that is new. Returns the size of the rank's log, which `load_size` has read before."""
        size = self.sizes[rank]
        new = data[size - offset :] if offset <= size else b""
        for at in range(0, len(new), CHUNK_BYTES):
            self._add(rank, size + at, new[at : at + CHUNK_BYTES])
        self.sizes[rank] = size + len(new)
        return self.sizes[rank]

    def _add(self, rank: int, start: int, piece: bytes) -> None:
        if self.new and self.new[-1][0] == rank and len(self.new[-1][2]) + len(piece) <= CHUNK_BYTES:
            self.new[-1][2].extend(piece)
        else:
            self.new.append((rank, start, bytearray(piece)))
            self.chunks += 1

    def new_rows(self) -> Iterator[LogRow]:
        """The new chunks."""
        for number, (rank, start, data) in enumerate(self.new, self.chunks - len(self.new)):
            yield LogRow(number, rank, start, len(data), bytes(data))

    def column_values(self) -> Iterator[dict[str, Any]]:
        """The new chunks as values of the columns."""
        for row in self.new_rows():
            yield {**dict(zip(_KEY, self.key, strict=True)), **row._asdict()}

    def to_append(self) -> LogAppend:
        return LogAppend(self.key, self.chunks - len(self.new), self.new)

    def count_values(self) -> dict[str, int]:
        """The parameters of `_SET_COUNT`."""
        return {"count": self.chunks, **{f"key_{name}": value for name, value in zip(_KEY, self.key, strict=True)}}


class SqlLogStore:
    """A `LogStore` in rows of at most 1 MiB.

    A writer locks the head row of an attempt's log until its transaction ends. So chunks are numbered in the order of
    commits: after a reader has seen number n, no lower number appears.

    On PostgreSQL, `_append_cached` appends with one statement (`postgres_append`) to the logs whose sizes are cached.
    `_append_locked` appends in a transaction that locks the head rows: always on SQLite, and on PostgreSQL to logs that
    are not cached or have changed since, and when the data begins beyond the cached end.

    `owner`: the lease owner of this daemon, which is not notified of its own writes.
    """

    linger_s = 0.01
    small_writes_per_s: float | None = 10.0
    write_overhead = 120  # a row with its entry in the index, on PostgreSQL

    def __init__(self, database: Engine, owner: str = "") -> None:
        self._database = database
        self._owner = owner
        self._cached: dict[AttemptKey, _CachedSizes] = {}
        self._readers: dict[AttemptKey, WeakSet[RowReader]] = {}
        self._readers_lock = threading.Lock()  # guards `_readers`
        self._writers: dict[int, None] = {}
        is_postgres = database.dialect.name == "postgresql"
        self._autocommit = database.execution_options(isolation_level="AUTOCOMMIT") if is_postgres else None

    def size(self, key: AttemptKey, rank: int) -> int:
        with self._database.connect() as conn:
            return _size(conn, key, rank)

    def sizes(self, places: Sequence[tuple[AttemptKey, int]]) -> list[int]:
        with self._database.connect() as conn:
            rows = conn.execute(_SIZES, {"job_ids": sorted({key[0] for key, _ in places})})
            stored = {((r.job_id, r.task_index, r.generation), r.rank): r.size or 0 for r in rows}
            return [stored[place] if place in stored else _size(conn, *place) for place in places]

    def overhead(self, key: AttemptKey, rank: int) -> int:  # noqa: ARG002 - rows are counted for all ranks
        with self._database.connect() as conn:
            rows = conn.execute(select(LogHeads.c.chunks).where(*_is(LogHeads, key))).scalar() or 0
            nodes = conn.execute(select(func.count()).select_from(Node).where(*_is(Node, key))).scalar() or 1
        return int(rows) * self.write_overhead // nodes

    def prepare(self, places: Sequence[tuple[AttemptKey, int]]) -> None:
        """Nothing: the first row of a log costs no more than the others."""

    def append(self, key: AttemptKey, rank: int, offset: int, data: bytes) -> int:
        return self._append([(key, rank, offset, data)])[0]

    def append_all(self, writes: Sequence[LogWrite]) -> Sequence[int | Exception]:
        """`append` for several, in one transaction. Raises what the database raises while it is unavailable."""
        try:
            return self._append(writes)
        except DBAPIError as error:
            if is_transient(error):
                raise
        return [self._append_alone(write) for write in writes]

    def _append_alone(self, write: LogWrite) -> int | Exception:
        try:
            return self.append(*write)
        except DBAPIError as error:
            return error

    def _append(self, writes: Sequence[LogWrite]) -> list[int]:
        sizes = [None] * len(writes) if self._autocommit is None else self._append_cached(self._autocommit, writes)
        left = [write for write, size in zip(writes, sizes, strict=True) if size is None]
        left_sizes = iter(self._append_locked(left) if left else ())
        return [next(left_sizes) if size is None else size for size in sizes]

    def _append_cached(self, database: Engine, writes: Sequence[LogWrite]) -> list[int | None]:
        """Append with one statement to the logs whose cached sizes are current. None for the other writes."""
        logs: dict[AttemptKey, _Log] = {}
        unknown: set[AttemptKey] = set()
        sizes: list[int | None] = []
        for key, rank, offset, data in writes:
            if key not in logs and (known := self._cached.get(key)) is not None and known.chunks:
                logs[key] = _Log(key, known.chunks, dict(known.sizes), is_new=False)
            if key not in logs or offset > logs[key].sizes.get(rank, -1):  # beyond a gap, according to the cache
                unknown.add(key)
            sizes.append(None if key in unknown else logs[key].append(rank, offset, data))
        left = [log for key, log in logs.items() if log.new and key not in unknown]
        while left:
            batch, left = _split_batch(left)
            with database.connect() as conn:
                self._note_writer(conn)
                appended = append_known(conn, [log.to_append() for log in batch], self._owner)
            self._committed([batch[nth] for nth in appended])
            unknown.update(log.key for nth, log in enumerate(batch) if nth not in appended)
        return [None if write[0] in unknown else size for write, size in zip(writes, sizes, strict=True)]

    def _append_locked(self, writes: Sequence[LogWrite]) -> list[int]:
        """Append under the locks of the head rows."""
        with self._database.begin() as conn:
            self._note_writer(conn)
            logs = self._lock(conn, sorted({write[0] for write in writes}))
            sizes = []
            for key, rank, offset, data in writes:
                logs[key].load_size(conn, rank)
                sizes.append(logs[key].append(rank, offset, data))
            changed = [log for log in logs.values() if log.new]
            if changed:
                conn.execute(insert(Chunks), [row for log in changed for row in log.column_values()])
                conn.execute(_SET_COUNT, [log.count_values() for log in changed])
                pg_notify.notify_all(conn, Topic.LOG, sorted({log.key[0] for log in changed}))
        self._committed(logs.values())
        return sizes

    def _note_writer(self, conn: Connection) -> None:
        if self._autocommit is not None:
            process_id = conn.connection.driver_connection.info.backend_pid  # type: ignore[union-attr]
            self._writers.pop(process_id, None)
            self._writers[process_id] = None
            while len(self._writers) > _MAX_WRITERS:
                self._writers.pop(next(iter(self._writers)), None)

    def has_written(self, process_id: int) -> bool:
        """Whether this daemon wrote through that server process, so that its notifications are about own writes."""
        return process_id in self._writers

    def _committed(self, logs: Iterable[_Log]) -> None:
        """Cache the sizes of logs after a commit, and publish the new rows to the readers."""
        for log in logs:
            self._cached.pop(log.key, None)
            self._cached[log.key] = _CachedSizes(log.chunks, log.sizes)
            if log.new and log.key in self._readers:
                self._publish(log)
        while len(self._cached) > _MAX_CACHED_LOGS:
            self._cached.pop(next(iter(self._cached)), None)

    def _publish(self, log: _Log) -> None:
        with self._readers_lock:
            readers = list(self._readers.get(log.key, ()))
            if not readers:
                self._readers.pop(log.key, None)
        rows = list(log.new_rows())
        for reader in readers:
            reader.publish(rows)

    def _lock(self, conn: Connection, keys: Sequence[AttemptKey]) -> dict[AttemptKey, _Log]:
        """Lock the head rows of these attempts, and create the missing ones. Returns the logs.

        No row is locked while others are created: another daemon that creates one of those may wait for the locked row.
        On SQLite, only a write locks, so every row is written.
        """
        is_sqlite = conn.dialect.name == "sqlite"
        _create_heads(conn, [key for key in keys if is_sqlite or key not in self._cached])
        chunk_counts = _lock_heads(conn, keys)
        if deleted := [key for key in keys if key not in chunk_counts]:  # cached here, deleted by another daemon
            _create_heads(conn, deleted)
            chunk_counts |= _lock_heads(conn, deleted)
        logs = {}
        for key, chunks in chunk_counts.items():
            known = self._cached.get(key)
            # The cached sizes are current if no other daemon has written since.
            sizes = dict(known.sizes) if known is not None and known.chunks == chunks else {}
            logs[key] = _Log(key, chunks, sizes, is_new=chunks == 0)
        return logs

    def reader(self, key: AttemptKey) -> RowReader:
        reader = RowReader(self._autocommit or self._database, key, lambda copy: self._register(key, copy))
        self._register(key, reader)
        return reader

    def _register(self, key: AttemptKey, reader: RowReader) -> None:
        with self._readers_lock:
            self._readers.setdefault(key, WeakSet()).add(reader)

    def read_chunk(self, key: AttemptKey, chunk: Chunk) -> bytes:
        end = chunk.offset + chunk.length
        wanted = (Chunks.c.rank == chunk.rank, Chunks.c.start >= chunk.offset, Chunks.c.start < end)
        query = select(Chunks.c.data).where(*_is(Chunks, key), *wanted).order_by(Chunks.c.start)
        with (self._autocommit or self._database).connect() as conn:
            data = b"".join(conn.execute(query).scalars())
        return require_whole(key, data, chunk.length)

    def read_range(self, key: AttemptKey, rank: int, offset: int, length: int) -> bytes:
        end = offset + length
        # A row has at most `CHUNK_BYTES`, so the one with the first byte begins no earlier than that.
        near = (Chunks.c.rank == rank, Chunks.c.start > offset - CHUNK_BYTES, Chunks.c.start < end)
        query = select(Chunks.c.start, Chunks.c.data).where(*_is(Chunks, key), *near)
        query = query.where(Chunks.c.start + Chunks.c.length > offset).order_by(Chunks.c.start)
        with (self._autocommit or self._database).connect() as conn:
            rows = conn.execute(query).all()
        data, next_byte = bytearray(), offset
        for start, piece in rows:
            if start > next_byte:  # rows are deleted in no order
                break
            data += piece[next_byte - start : end - start]
            next_byte = start + len(piece)
        return require_whole(key, bytes(data), length)

    def remove(self, job_id: int) -> bool:
        key = tuple_(Chunks.c.task_index, Chunks.c.generation, Chunks.c.number)
        stored = select(Chunks.c.task_index, Chunks.c.generation, Chunks.c.number).where(Chunks.c.job_id == job_id)
        with self._database.begin() as conn:
            batch = delete(Chunks).where(Chunks.c.job_id == job_id, key.in_(stored.limit(_DELETE_BATCH_SIZE)))
            if conn.execute(batch).rowcount:
                return True
            return conn.execute(delete(LogHeads).where(LogHeads.c.job_id == job_id)).rowcount > 0


def _split_batch(logs: Sequence[_Log]) -> tuple[list[_Log], list[_Log]]:
    """The logs for one statement, at least one of them, and the rest."""
    count = size = 0
    for log in logs[:MAX_LOGS]:
        size += log.to_append().size
        if count and size > _MAX_STATEMENT_BYTES:
            break
        count += 1
    return list(logs[:count]), list(logs[count:])


def insert_chunk(conn: Connection, key: AttemptKey, *, number: int, rank: int, start: int, data: bytes) -> None:
    """Insert one chunk. The caller holds the lock of the attempt's head row, or is the only writer."""
    conn.execute(insert(Chunks).values(**_row(key, number=number, rank=rank, start=start, data=data)))


def _row(key: AttemptKey, **piece: Any) -> dict[str, Any]:
    return {**dict(zip(_KEY, key, strict=True)), **piece, "length": len(piece["data"])}


def insert_head(conn: Connection, key: AttemptKey, chunks: int) -> None:
    """Insert the head row of an attempt's log whose `chunks` chunks were inserted by `insert_chunk`."""
    where = dict(zip(_KEY, key, strict=True))
    conn.execute(insert(LogHeads).values(**where, chunks=chunks))


def digest_of(conn: Connection, key: AttemptKey, rank: int) -> str:
    """The sha256 of a node's log."""
    sha = hashlib.sha256()
    query = select(Chunks.c.data).where(*_is(Chunks, key), Chunks.c.rank == rank).order_by(Chunks.c.start)
    for data in conn.execute(query, execution_options={"yield_per": 8}).scalars():
        sha.update(data)
    return sha.hexdigest()


def _create_heads(conn: Connection, keys: Sequence[AttemptKey]) -> None:
    """Insert the missing head rows. `keys`: in ascending order."""
    if keys:
        rows = [{**dict(zip(_KEY, key, strict=True)), "chunks": 0} for key in keys]
        conn.execute(insert_into(conn, LogHeads).on_conflict_do_nothing(), rows)


def _lock_heads(conn: Connection, keys: Sequence[AttemptKey]) -> dict[AttemptKey, int]:
    """Lock the existing head rows. Returns the number of chunks in each log."""
    return {(row.job_id, row.task_index, row.generation): row.chunks for row in conn.execute(_LOCK, {"keys": keys})}


def _size(conn: Connection, key: AttemptKey, rank: int) -> int:
    last = select(Chunks.c.start + Chunks.c.length).where(*_is(Chunks, key), Chunks.c.rank == rank)
    return int(conn.execute(last.order_by(Chunks.c.start.desc()).limit(1)).scalar() or 0)


def _is(table: Any, key: AttemptKey) -> tuple[ColumnElement[bool], ...]:
    return (table.c.job_id == key[0], table.c.task_index == key[1], table.c.generation == key[2])
