"""Readers of logs in the database, with a buffer of the rows that their daemon has written."""

from __future__ import annotations

import random

import pytest
from sqlalchemy import Engine, event

from perdure.controller.store.logs import sql_reader
from perdure.controller.store.logs.protocol import Chunk
from perdure.controller.store.logs.sql_logs import SqlLogStore
from perdure.controller.store.logs.sql_reader import LogRow, RowReader

KEY, OTHER = (1, 0, 1), (2, 0, 1)


@pytest.fixture
def statements(database: Engine) -> list[str]:
    """The statements that the database executes."""
    executed: list[str] = []
    event.listen(database, "before_cursor_execute", lambda _c, _k, statement, *_: executed.append(statement))
    return executed


def read_data(logs: SqlLogStore, reader: RowReader) -> bytes:
    return b"".join(c.data if c.data is not None else logs.read_chunk(KEY, c) for c in reader.read_new())


def test_row_reader__returns_rows_of_its_daemon_without_a_query(database: Engine, statements: list[str]) -> None:
    logs = SqlLogStore(database)
    logs.append(KEY, 0, 0, b"first ")
    reader = logs.reader(KEY)
    assert read_data(logs, reader) == b"first "
    assert not reader.has_buffered
    logs.append_all([(KEY, 0, 6, b"a"), (KEY, 0, 7, b"b"), (KEY, 1, 0, b"1"), (OTHER, 0, 0, b"x")])
    statements.clear()
    assert reader.has_buffered
    assert reader.read_new() == [Chunk(0, 6, 2), Chunk(1, 0, 1)]
    assert not statements
    assert reader.read_new() == []
    logs.append(KEY, 0, 8, b"c")
    assert [chunk.data for chunk in reader.read_new()] == [b"c"]


def test_row_reader__misses_no_rows_of_other_daemons(database: Engine) -> None:
    logs, other = SqlLogStore(database), SqlLogStore(database)
    reader = logs.reader(KEY)
    seen, at = b"", 0
    chance = random.Random(7)
    for number in range(60):
        data = b"%d," % number
        at = (logs if chance.random() < 0.7 else other).append(KEY, 0, at, data)
        if chance.random() < 0.5:
            seen += read_data(logs, reader)
    assert seen + read_data(logs, reader) == b"".join(b"%d," % number for number in range(60))


def test_row_reader__buffers_at_most_one_mib(database: Engine) -> None:
    logs = SqlLogStore(database)
    logs.append(KEY, 0, 0, b"x")
    reader = logs.reader(KEY)
    reader.read_new()
    at = 1
    for _ in range(5):
        at = logs.append(KEY, 0, at, b"y" * (sql_reader.CHUNK_BYTES // 2 - 1))
    assert sum(row.length for row in reader._buffered) <= sql_reader.CHUNK_BYTES
    assert not reader.has_buffered
    assert len(read_data(logs, reader)) == at - 1
    logs.append(KEY, 0, at, b"z")
    assert read_data(logs, reader) == b"z"


def test_row_reader__is_forgotten_when_it_is_deleted(database: Engine) -> None:
    logs = SqlLogStore(database)
    reader = logs.reader(KEY)
    logs.append(KEY, 0, 0, b"a")
    assert KEY in logs._readers
    del reader
    logs.append(KEY, 0, 1, b"b")
    assert KEY not in logs._readers


@pytest.mark.parametrize("first", [0, 2, 3, 5])
def test_row_reader__uses_the_buffer_only_without_a_gap(database: Engine, first: int) -> None:
    logs = SqlLogStore(database)
    logs.append_all([(KEY, rank, 0, b"%d" % rank) for rank in range(4)])
    reader = RowReader(database, KEY)
    reader.next_number = 2
    reader.publish([LogRow(number, number, 0, 1, b"%d" % number) for number in range(first, max(first + 1, 4))])
    assert reader.has_buffered is (first < 3)
    assert read_data(logs, reader) == b"23"
