"""Reads an attempt's log from rows of a database, and what this daemon has just written from memory."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import Engine, bindparam, case, select

from perdure.controller.keyring import AttemptKey
from perdure.controller.nodelogs import Chunk
from perdure.controller.store.tables import LogChunkRow

Chunks = LogChunkRow.__table__  # type: ignore[attr-defined]

CHUNK_BYTES = 2**20
_FEW = 64  # so many rows are read with their data, if they are short: mostly there are few
_SHORT_BYTES = 4096
_NEW = (
    select(Chunks.c.number, Chunks.c.rank, Chunks.c.start, Chunks.c.length)
    .where(*(Chunks.c[name] == bindparam(name) for name in ("job_id", "task_index", "generation")))
    .where(Chunks.c.number >= bindparam("next"))
    .order_by(Chunks.c.number)
)
_IS_AT_HAND = (Chunks.c.number < bindparam("next") + _FEW) & (Chunks.c.length <= _SHORT_BYTES)
_NEW_WITH_DATA = _NEW.add_columns(case((_IS_AT_HAND, Chunks.c.data), else_=None).label("data"))


class Written(NamedTuple):
    """A row of the log, `data` where it is at hand."""

    number: int
    rank: int
    start: int
    length: int
    data: bytes | None


class RowReader:
    """Reads on from the number at which it stopped. What one rank said in a row is one chunk, up to 1 MiB.

    Numbers are given in the order of commits. So what was handed over can be told without a look at the database as
    long as nothing is missing between it and what was read before.
    """

    def __init__(self, database: Engine, key: AttemptKey) -> None:
        self.next_number = 0
        self._database = database
        self._key = dict(zip(("job_id", "task_index", "generation"), key, strict=True))
        self._lock = threading.Lock()
        self._handed: deque[Written] = deque()  # numbered in a row
        self._handed_bytes = 0

    def hand(self, rows: Sequence[Written]) -> None:
        """What was committed just now, in the order of its numbers. It is kept until it is read, up to 1 MiB."""
        with self._lock:
            if self._handed and self._handed[-1].number + 1 != rows[0].number:
                self._handed.clear()
                self._handed_bytes = 0
            self._handed.extend(rows)
            self._handed_bytes += sum(row.length for row in rows)
            while self._handed and (self._handed_bytes > CHUNK_BYTES or self._handed[0].number < self.next_number):
                self._handed_bytes -= self._handed.popleft().length

    @property
    def is_at_hand(self) -> bool:
        """Whether `new` would say something without asking the database."""
        with self._lock:
            handed = self._handed
            return bool(handed) and handed[0].number <= self.next_number <= handed[-1].number

    def new(self) -> list[Chunk]:
        return _joined(self._take() or self._read())

    def _take(self) -> list[Written]:
        with self._lock:
            rows = [row for row in self._handed if row.number >= self.next_number]
            if not rows or rows[0].number > self.next_number:
                return []
            self._handed.clear()
            self._handed_bytes = 0
            self.next_number = rows[-1].number + 1
            return rows

    def _read(self) -> list[Written]:
        query = _NEW_WITH_DATA if self.next_number else _NEW
        with self._database.connect() as conn:
            found = conn.execute(query, {**self._key, "next": self.next_number}).all()
        rows = [Written(row.number, row.rank, row.start, row.length, getattr(row, "data", None)) for row in found]
        if rows:
            self.next_number = rows[-1].number + 1
        return rows


def _joined(rows: Sequence[Written]) -> list[Chunk]:
    found: list[tuple[int, int, int, list[bytes | None]]] = []
    for _, rank, start, length, data in rows:
        if found and found[-1][0] == rank and found[-1][2] + length <= CHUNK_BYTES:
            _, first, before, datas = found[-1]
            datas.append(data)
            found[-1] = (rank, first, before + length, datas)
        else:
            found.append((rank, start, length, [data]))
    return [Chunk(rank, start, length, _whole(datas)) for rank, start, length, datas in found]


def _whole(datas: Sequence[bytes | None]) -> bytes | None:
    known = [data for data in datas if data is not None]
    return b"".join(known) if len(known) == len(datas) else None
