"""Logs in rows: what is added by one statement, what two daemons do to each other, and what readers are handed."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from sqlalchemy import Engine, event
from sqlalchemy.exc import DBAPIError

from perdure.controller import rowreader, sharedlogs
from perdure.controller.nodelogs import Chunk
from perdure.controller.rowreader import RowReader, Written
from perdure.controller.sharedlogs import SharedLogs
from perdure.controller.store import wake
from perdure.controller.store.database import open_database, psycopg_url

KEY, OTHER = (1, 0, 1), (2, 0, 1)


@pytest.fixture
def statements(database: Engine) -> list[str]:
    """What the database is asked."""
    asked: list[str] = []
    event.listen(database, "before_cursor_execute", lambda _c, _k, statement, *_: asked.append(statement))
    return asked


def whole(logs: SharedLogs, key: tuple[int, int, int] = KEY, rank: int = 0) -> bytes:
    return b"".join(logs.read(key, chunk) for chunk in logs.reader(key).new() if chunk.rank == rank)


def told(logs: SharedLogs, reader: RowReader) -> bytes:
    return b"".join(c.data if c.data is not None else logs.read(KEY, c) for c in reader.new())


def test_what_is_added_to_known_logs_is_one_statement(database: Engine, statements: list[str]) -> None:
    logs = SharedLogs(database)
    logs.append_all([(KEY, 0, 0, b"a"), (OTHER, 0, 0, b"x"), (KEY, 1, 0, b"1")])
    statements.clear()
    assert logs.append_all([(KEY, 0, 1, b"bc"), (OTHER, 0, 1, b"yz"), (KEY, 1, 0, b"12"), (KEY, 0, 3, b"d")]) == [
        3,
        3,
        2,
        4,
    ]
    if database.dialect.name == "postgresql":
        assert len(statements) == 1
    again = SharedLogs(database)
    assert [whole(again), whole(again, OTHER), whole(again, rank=1)] == [b"abcd", b"xyz", b"12"]
    assert again.append(KEY, 0, 4, b"e") == 5
    assert logs.append(KEY, 0, 4, b"ef") == 6
    assert whole(logs) == b"abcdef"


def test_what_is_known_already_costs_nothing(database: Engine, statements: list[str]) -> None:
    logs = SharedLogs(database)
    logs.append(KEY, 0, 0, b"abc")
    statements.clear()
    assert logs.append(KEY, 0, 1, b"b") == 3
    if database.dialect.name == "postgresql":
        assert not statements


def test_beyond_a_gap_it_is_asked_what_there_is(database: Engine) -> None:
    """The node may have gone on at another daemon, which was told more."""
    one, two = SharedLogs(database), SharedLogs(database)
    assert one.append(KEY, 0, 0, b"ab") == 2
    assert two.append(KEY, 0, 2, b"cd") == 4
    assert one.append_all([(KEY, 0, 4, b"ef"), (KEY, 0, 6, b"gh"), (KEY, 1, 0, b"x"), (KEY, 0, 9, b"?")]) == [
        6,
        8,
        1,
        8,
    ]
    assert whole(two) == b"abcdefgh"


def test_a_log_that_another_has_written_on_is_looked_at_again_and_the_others_are_not(
    database: Engine, statements: list[str]
) -> None:
    one, two = SharedLogs(database), SharedLogs(database)
    assert one.append_all([(KEY, 0, 0, b"ab"), (OTHER, 0, 0, b"x")]) == [2, 1]
    assert two.append(KEY, 0, 0, b"abcd") == 4
    statements.clear()
    assert one.append_all([(KEY, 0, 2, b"cdef"), (OTHER, 0, 1, b"y")]) == [6, 2]
    if database.dialect.name == "postgresql":
        assert sum("INSERT INTO log_chunk" in statement for statement in statements) == 2
    assert [whole(two), whole(two, OTHER)] == [b"abcdef", b"xy"]
    assert [chunk.length for chunk in two.reader(KEY).new()] == [6]


def test_daemons_that_write_many_logs_at_once_lose_and_double_nothing(database: Engine) -> None:
    keys = [(job, 0, 1) for job in range(1, 9)]
    line = b"".join(b"line %d\n" % i for i in range(60))

    def send(logs: SharedLogs, chance: random.Random) -> None:
        at = dict.fromkeys(keys, 0)
        while left := [key for key in keys if at[key] < len(line)]:
            some = chance.sample(left, min(5, len(left)))
            sizes = logs.append_all([(key, 0, at[key], line[at[key] : at[key] + 50]) for key in some])
            at.update((key, size) for key, size in zip(some, sizes, strict=True) if isinstance(size, int))

    writers = [SharedLogs(database), SharedLogs(database), SharedLogs(database)]
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(send, writers[nth % 3], random.Random(nth)) for nth in range(4)]:
            done.result()
    assert [whole(SharedLogs(database), key) for key in keys] == [line] * len(keys)


def test_much_at_once_is_more_than_one_statement(database: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharedlogs, "_MOST_BYTES", 10)
    monkeypatch.setattr(sharedlogs, "MOST_AT_ONCE", 3)
    keys = [(job, 0, 1) for job in range(1, 12)]
    logs = SharedLogs(database)
    logs.append_all([(key, 0, 0, b"a") for key in keys])
    data = {key: bytes([65 + key[0]]) * key[0] for key in keys}
    assert logs.append_all([(key, 0, 1, data[key]) for key in keys]) == [1 + key[0] for key in keys]
    assert [whole(logs, key) for key in keys] == [b"a" + data[key] for key in keys]


def test_what_was_said_before_the_database_broke_is_known_after(
    database: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit whose answer was lost: the node sends again what is there already."""
    logs = SharedLogs(database)
    logs.append(KEY, 0, 0, b"ab")
    real = logs._remember
    with monkeypatch.context() as patch:
        patch.setattr(logs, "_remember", lambda _: (_ for _ in ()).throw(DBAPIError("lost", {}, Exception())))
        with pytest.raises(DBAPIError):
            logs.append(KEY, 0, 2, b"cd")
    assert logs._remember == real
    assert logs.append(KEY, 0, 2, b"cdef") == 6
    assert whole(logs) == b"abcdef"


def test_a_reader_is_handed_what_its_daemon_writes(database: Engine, statements: list[str]) -> None:
    logs = SharedLogs(database)
    logs.append(KEY, 0, 0, b"first ")
    reader = logs.reader(KEY)
    assert told(logs, reader) == b"first "
    assert not reader.is_at_hand
    logs.append_all([(KEY, 0, 6, b"a"), (KEY, 0, 7, b"b"), (KEY, 1, 0, b"1"), (OTHER, 0, 0, b"x")])
    statements.clear()
    assert reader.is_at_hand
    assert reader.new() == [Chunk(0, 6, 2), Chunk(1, 0, 1)]
    assert not statements
    assert reader.new() == []
    logs.append(KEY, 0, 8, b"c")
    assert [chunk.data for chunk in reader.new()] == [b"c"]


def test_between_its_daemons_lines_a_reader_misses_no_others(database: Engine) -> None:
    logs, other = SharedLogs(database), SharedLogs(database)
    reader = logs.reader(KEY)
    seen, at = b"", 0
    chance = random.Random(7)
    for turn in range(60):
        data = b"%d," % turn
        at = (logs if chance.random() < 0.7 else other).append(KEY, 0, at, data)
        if chance.random() < 0.5:
            seen += told(logs, reader)
    assert seen + told(logs, reader) == b"".join(b"%d," % turn for turn in range(60))


def test_a_reader_that_is_slow_keeps_no_more_than_a_mib(database: Engine) -> None:
    logs = SharedLogs(database)
    logs.append(KEY, 0, 0, b"x")
    reader = logs.reader(KEY)
    reader.new()
    at = 1
    for _ in range(5):
        at = logs.append(KEY, 0, at, b"y" * (rowreader.CHUNK_BYTES // 2 - 1))
    assert sum(row.length for row in reader._handed) <= rowreader.CHUNK_BYTES
    assert not reader.is_at_hand
    assert len(told(logs, reader)) == at - 1
    logs.append(KEY, 0, at, b"z")
    assert told(logs, reader) == b"z"


def test_a_reader_that_has_gone_is_handed_nothing(database: Engine) -> None:
    logs = SharedLogs(database)
    reader = logs.reader(KEY)
    logs.append(KEY, 0, 0, b"a")
    assert KEY in logs._readers
    del reader
    logs.append(KEY, 0, 1, b"b")
    assert KEY not in logs._readers


@pytest.mark.parametrize("first", [0, 2, 3, 5])
def test_what_was_handed_counts_only_where_nothing_is_missing_before_it(database: Engine, first: int) -> None:
    logs = SharedLogs(database)
    logs.append_all([(KEY, rank, 0, b"%d" % rank) for rank in range(4)])
    reader = RowReader(database, KEY)
    reader.next_number = 2
    reader.hand([Written(number, number, 0, 1, b"%d" % number) for number in range(first, max(first + 1, 4))])
    assert reader.is_at_hand is (first < 3)
    assert told(logs, reader) == b"23"


@pytest.mark.parametrize("lives", [True, False])
def test_others_are_woken_if_there_are_any(database: Engine, lives: bool) -> None:
    if database.dialect.name != "postgresql":
        return
    until = "date_part('epoch', clock_timestamp()) + " + ("60" if lives else "-60")
    with database.begin() as conn:
        for owner, lease_until in (("one", "1e12"), ("two", until)):
            values = f"'{owner}', 0, {lease_until}, '', ''"
            conn.exec_driver_sql(
                f"INSERT INTO controller (id, started_at, lease_until, endpoint, knows) VALUES ({values})"
            )
    logs = SharedLogs(database, "one")
    logs.append_all([(KEY, 0, 0, b"a"), (OTHER, 0, 0, b"b")])
    with psycopg.connect(psycopg_url(database.url.render_as_string(hide_password=False)), autocommit=True) as conn:
        conn.execute(f"LISTEN {wake.CHANNEL}")
        logs.append_all([(OTHER, 0, 1, b"d"), (KEY, 0, 1, b"c")])
        conn.execute("SELECT pg_notify(%s, 'done')", [wake.CHANNEL])
        said = [notification.payload for notification in conn.notifies(timeout=10.0, stop_after=2 if lives else 1)]
    assert said == [*(["log 1,2"] if lives else []), "done"]


def test_its_own_notifications_are_told_from_others(database: Engine) -> None:
    if database.dialect.name != "postgresql":
        return
    one, two = SharedLogs(database), SharedLogs(open_database(database.url.render_as_string(hide_password=False)))
    for logs in (one, two):
        logs.append(KEY, 0, 0, b"a")
    writers = [set(logs._writers) for logs in (one, two)]
    assert all(writers)
    assert not writers[0] & writers[1]
    assert all(one.has_written(process_id) and not two.has_written(process_id) for process_id in writers[0])
    two._database.dispose()
