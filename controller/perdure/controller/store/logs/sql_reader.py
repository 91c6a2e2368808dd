"""Reads an attempt's log from the database, or from memory if this daemon has just written it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from sqlalchemy import Engine, bindparam, case, select

from perdure.controller.runtime.keys import AttemptKey
from perdure.controller.store.logs.protocol import Chunk
from perdure.controller.store.tables import LogChunkRow

Chunks = LogChunkRow.__table__  # type: ignore[attr-defined]

CHUNK_BYTES = 2**20
_ROWS_WITH_DATA = 64  # the first rows are read with their data if they are short: usually that is all of them
_SHORT_BYTES = 4096
_NEW = (
    select(Chunks.c.number, Chunks.c.rank, Chunks.c.start, Chunks.c.length)
    .where(*(Chunks.c[name] == bindparam(name) for name in ("job_id", "task_index", "generation")))
    .where(Chunks.c.number >= bindparam("next"))
    .order_by(Chunks.c.number)
)
_HAS_DATA = (Chunks.c.number < bindparam("next") + _ROWS_WITH_DATA) & (Chunks.c.length <= _SHORT_BYTES)
_NEW_WITH_DATA = _NEW.add_columns(case((_HAS_DATA, Chunks.c.data), else_=None).label("data"))


class LogRow(NamedTuple):
    """A row of the log. `data` is None if it was not read."""

    number: int
    rank: int
    start: int
    length: int
    data: bytes | None


class RowReader:
    """Continues at the row number at which it stopped. Consecutive rows of one rank become one chunk of up to 1 MiB.

    Rows are numbered in the order of commits. So published rows are returned without reading the database as long as no
    number is missing between them and the rows that were read before.
    """

    def __init__(
        self, database: Engine, key: AttemptKey, on_copied: Callable[[RowReader], None] = lambda _: None
    ) -> None:
        self.next_number = 0
        self._on_copied = on_copied  # the store publishes rows to copies, too
        self._database = database
        self._attempt = key
        self._key = dict(zip(("job_id", "task_index", "generation"), key, strict=True))
        self._lock = threading.Lock()
        self._buffered: deque[LogRow] = deque()  # consecutive numbers
        self._buffered_bytes = 0

    def copy(self) -> RowReader:
        other = RowReader(self._database, self._attempt, self._on_copied)
        other.next_number = self.next_number
        self._on_copied(other)
        return other

    def publish(self, rows: Sequence[LogRow]) -> None:
        """Buffer rows that were just committed, in order, until they are read. At most 1 MiB is buffered."""
        with self._lock:
            if self._buffered and self._buffered[-1].number + 1 != rows[0].number:
                self._buffered.clear()
                self._buffered_bytes = 0
            self._buffered.extend(rows)
            self._buffered_bytes += sum(row.length for row in rows)
            rows_left = self._buffered
            while rows_left and (self._buffered_bytes > CHUNK_BYTES or rows_left[0].number < self.next_number):
                self._buffered_bytes -= rows_left.popleft().length

    @property
    def has_buffered(self) -> bool:
        """Whether `read_new` would return rows without reading the database."""
        with self._lock:
            rows = self._buffered
            return bool(rows) and rows[0].number <= self.next_number <= rows[-1].number

    def read_new(self) -> list[Chunk]:
        return _join(self._take_buffered() or self._read())

    def _take_buffered(self) -> list[LogRow]:
        with self._lock:
            rows = [row for row in self._buffered if row.number >= self.next_number]
            if not rows or rows[0].number > self.next_number:
                return []
            self._buffered.clear()
            self._buffered_bytes = 0
            self.next_number = rows[-1].number + 1
            return rows

    def _read(self) -> list[LogRow]:
        query = _NEW_WITH_DATA if self.next_number else _NEW
        with self._database.connect() as conn:
            result = conn.execute(query, {**self._key, "next": self.next_number}).all()
        rows = [LogRow(row.number, row.rank, row.start, row.length, getattr(row, "data", None)) for row in result]
        if rows:
            self.next_number = rows[-1].number + 1
        return rows


def _join(rows: Sequence[LogRow]) -> list[Chunk]:
    joined: list[tuple[int, int, int, list[bytes | None]]] = []
    for _, rank, start, length, data in rows:
        if joined and joined[-1][0] == rank and joined[-1][2] + length <= CHUNK_BYTES:
            _, first, before, datas = joined[-1]
            datas.append(data)
            joined[-1] = (rank, first, before + length, datas)
        else:
            joined.append((rank, start, length, [data]))
    return [Chunk(rank, start, length, _concatenate(datas)) for rank, start, length, datas in joined]


def _concatenate(datas: Sequence[bytes | None]) -> bytes | None:
    known = [data for data in datas if data is not None]
    return b"".join(known) if len(known) == len(datas) else None
