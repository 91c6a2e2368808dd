"""Both log stores make the same promises: log files of one daemon, and logs in the database of several."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from sqlalchemy import Engine

from perdure.controller.store.engine.database import open_database
from perdure.controller.store.logs.file_logs import FileLogStore
from perdure.controller.store.logs.protocol import Chunk, LogStore
from perdure.controller.store.logs.sql_logs import SqlLogStore

KEY = (1, 0, 1)


def new_database(request: pytest.FixtureRequest, folder: Path) -> Engine:
    if request.param == "sqlite":
        return open_database(f"sqlite:///{folder / 'shared.db'}")
    return open_database(request.getfixturevalue("postgres").new_database())


@pytest.fixture(params=["files", "sqlite", "postgresql"])
def make_logs(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[], LogStore]:
    """Creates the store of a daemon. Two stores with a database are like two daemons on it."""
    if request.param == "files":
        return lambda: FileLogStore(tmp_path)
    engine = new_database(request, tmp_path)
    return lambda: SqlLogStore(engine)


def whole_log(logs: LogStore, rank: int = 0) -> bytes:
    return b"".join(logs.read_chunk(KEY, chunk) for chunk in logs.reader(KEY).read_new() if chunk.rank == rank)


def test_append__stores_overlapping_sends_once(make_logs: Callable[[], LogStore]) -> None:
    logs, chance = make_logs(), random.Random(4)
    whole = chance.randbytes(3000)
    assert logs.size(KEY, 0) == 0
    for _ in range(60):
        start = chance.randrange(len(whole))
        logs.append(KEY, 0, start, whole[start : start + chance.randrange(1, 300)])
    stored = logs.size(KEY, 0)
    assert make_logs().append(KEY, 0, stored, whole[stored:]) == len(whole)
    assert whole_log(logs) == whole


def test_append__rejects_bytes_beyond_a_gap(make_logs: Callable[[], LogStore]) -> None:
    logs = make_logs()
    assert logs.append(KEY, 0, 0, b"abc") == 3
    assert logs.append(KEY, 0, 10, b"later") == 3
    assert logs.append(KEY, 1, 0, b"other") == 5
    assert logs.append((1, 0, 2), 0, 0, b"x") == 1


def test_append_all__equals_single_appends(make_logs: Callable[[], LogStore]) -> None:
    logs, others = make_logs(), (2, 0, 1)
    first = [(KEY, 0, 0, b"ab"), (others, 0, 0, b"x"), (KEY, 1, 0, b"12"), (KEY, 0, 2, b"cd")]
    assert logs.append_all(first) == [2, 1, 2, 4]
    assert logs.append(KEY, 0, 4, b"ef") == 6
    assert logs.append_all([(KEY, 0, 3, b"defg"), (KEY, 0, 9, b"beyond a gap"), (KEY, 0, 7, b"h")]) == [7, 7, 8]
    assert whole_log(logs) == b"abcdefgh"
    assert logs.sizes([(KEY, 1), (KEY, 0), (others, 0), ((3, 0, 1), 0)]) == [2, 8, 1, 0]


def test_reader__continues_where_it_stopped(make_logs: Callable[[], LogStore]) -> None:
    logs = make_logs()
    reader = logs.reader(KEY)
    assert reader.read_new() == []
    for piece in (b"a", b"bc"):
        logs.append(KEY, 0, logs.size(KEY, 0), piece)
    logs.append(KEY, 1, 0, b"xyz")
    assert b"".join(logs.read_chunk(KEY, chunk) for chunk in reader.read_new()) == b"abcxyz"
    logs.append(KEY, 0, 3, b"d")
    assert [logs.read_chunk(KEY, chunk) for chunk in reader.read_new()] == [b"d"]
    assert reader.read_new() == []


def test_remove__deletes_a_large_log_in_batches(make_logs: Callable[[], LogStore]) -> None:
    logs = make_logs()
    for part in range(60):
        logs.append((3, 0, 1), part % 2, part // 2, b"x")
    logs.append((4, 0, 1), 0, 0, b"another")
    calls = 0
    while logs.remove(3):
        calls += 1
    assert calls == (1 if isinstance(logs, FileLogStore) else 3)
    assert (logs.size((3, 0, 1), 0), logs.size((4, 0, 1), 0)) == (0, 7)


def test_read__of_a_log_that_is_being_deleted_returns_nothing_wrong(make_logs: Callable[[], LogStore]) -> None:
    """After each step of the deletion, a read returns the bytes that were there or fails."""
    logs = make_logs()
    lines = [b"line %04d\n" % n for n in range(120)]
    for nth, line in enumerate(lines):
        logs.append(KEY, 0, nth * 10, line)
    text = b"".join(lines)
    missing, has_more = 0, True
    while has_more:
        has_more = logs.remove(1)
        for start in range(0, 1200, 30):
            try:
                assert logs.read_range(KEY, 0, start + 5, 20) == text[start + 5 :][:20]
                assert logs.read_chunk(KEY, Chunk(0, start, 30)) == text[start:][:30]
            except FileNotFoundError:
                missing += 1
    assert missing


def test_read__of_more_than_there_is_fails(make_logs: Callable[[], LogStore]) -> None:
    logs = make_logs()
    logs.append(KEY, 0, 0, b"abc")
    logs.append(KEY, 1, 0, b"other")
    logs.append(KEY, 0, 3, b"def")
    assert logs.read_range(KEY, 0, 1, 5) == b"bcdef"
    for offset, length in [(1, 6), (6, 1), (9, 1)]:
        with pytest.raises(FileNotFoundError):
            logs.read_range(KEY, 0, offset, length)
