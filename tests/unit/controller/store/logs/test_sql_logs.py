"""Logs in the database: appends with one statement, and several daemons that write at once."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
from sqlalchemy import Engine, event
from sqlalchemy.exc import DBAPIError

from perdure.controller.store.engine import pg_notify
from perdure.controller.store.engine.database import open_database, psycopg_url
from perdure.controller.store.logs import sql_logs, sql_reader
from perdure.controller.store.logs.sql_logs import SqlLogStore
from support.helpers.timing import scaled

KEY, OTHER = (1, 0, 1), (2, 0, 1)


@pytest.fixture
def statements(database: Engine) -> list[str]:
    """The statements that the database executes."""
    executed: list[str] = []
    event.listen(database, "before_cursor_execute", lambda _c, _k, statement, *_: executed.append(statement))
    return executed


def whole_log(logs: SqlLogStore, key: tuple[int, int, int] = KEY, rank: int = 0) -> bytes:
    return b"".join(logs.read_chunk(key, chunk) for chunk in logs.reader(key).read_new() if chunk.rank == rank)


def test_append_all__known_logs_take_one_statement(database: Engine, statements: list[str]) -> None:
    logs = SqlLogStore(database)
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
    other = SqlLogStore(database)
    assert [whole_log(other), whole_log(other, OTHER), whole_log(other, rank=1)] == [b"abcd", b"xyz", b"12"]
    assert other.append(KEY, 0, 4, b"e") == 5
    assert logs.append(KEY, 0, 4, b"ef") == 6
    assert whole_log(logs) == b"abcdef"


def test_append__stored_bytes_take_no_statement(database: Engine, statements: list[str]) -> None:
    logs = SqlLogStore(database)
    logs.append(KEY, 0, 0, b"abc")
    statements.clear()
    assert logs.append(KEY, 0, 1, b"b") == 3
    if database.dialect.name == "postgresql":
        assert not statements


def test_append_all__gap_in_the_cache_reads_the_stored_size(database: Engine) -> None:
    """The node may have continued at another daemon, which received more."""
    one, two = SqlLogStore(database), SqlLogStore(database)
    assert one.append(KEY, 0, 0, b"ab") == 2
    assert two.append(KEY, 0, 2, b"cd") == 4
    assert one.append_all([(KEY, 0, 4, b"ef"), (KEY, 0, 6, b"gh"), (KEY, 1, 0, b"x"), (KEY, 0, 9, b"?")]) == [
        6,
        8,
        1,
        8,
    ]
    assert whole_log(two) == b"abcdefgh"


def test_append_all__reads_only_the_logs_that_another_daemon_changed(database: Engine, statements: list[str]) -> None:
    one, two = SqlLogStore(database), SqlLogStore(database)
    assert one.append_all([(KEY, 0, 0, b"ab"), (OTHER, 0, 0, b"x")]) == [2, 1]
    assert two.append(KEY, 0, 0, b"abcd") == 4
    statements.clear()
    assert one.append_all([(KEY, 0, 2, b"cdef"), (OTHER, 0, 1, b"y")]) == [6, 2]
    if database.dialect.name == "postgresql":
        assert sum("INSERT INTO log_chunk" in statement for statement in statements) == 2
    assert [whole_log(two), whole_log(two, OTHER)] == [b"abcdef", b"xy"]
    assert [chunk.length for chunk in two.reader(KEY).read_new()] == [6]


def test_append_all__concurrent_daemons_lose_and_duplicate_nothing(database: Engine) -> None:
    keys = [(job, 0, 1) for job in range(1, 9)]
    line = b"".join(b"line %d\n" % i for i in range(60))

    def send(logs: SqlLogStore, chance: random.Random) -> None:
        at = dict.fromkeys(keys, 0)
        while left := [key for key in keys if at[key] < len(line)]:
            some = chance.sample(left, min(5, len(left)))
            sizes = logs.append_all([(key, 0, at[key], line[at[key] : at[key] + 50]) for key in some])
            at.update((key, size) for key, size in zip(some, sizes, strict=True) if isinstance(size, int))

    writers = [SqlLogStore(database), SqlLogStore(database), SqlLogStore(database)]
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(send, writers[nth % 3], random.Random(nth)) for nth in range(4)]:
            done.result()
    assert [whole_log(SqlLogStore(database), key) for key in keys] == [line] * len(keys)


def test_append_all__splits_large_batches(database: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sql_logs, "_MAX_STATEMENT_BYTES", 10)
    monkeypatch.setattr(sql_logs, "MAX_LOGS", 3)
    keys = [(job, 0, 1) for job in range(1, 12)]
    logs = SqlLogStore(database)
    logs.append_all([(key, 0, 0, b"a") for key in keys])
    data = {key: bytes([65 + key[0]]) * key[0] for key in keys}
    assert logs.append_all([(key, 0, 1, data[key]) for key in keys]) == [1 + key[0] for key in keys]
    assert [whole_log(logs, key) for key in keys] == [b"a" + data[key] for key in keys]


def test_append__after_an_unknown_commit_stores_nothing_twice(
    database: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node sends bytes again whose commit was not acknowledged."""
    logs = SqlLogStore(database)
    logs.append(KEY, 0, 0, b"ab")
    real = logs._committed
    with monkeypatch.context() as patch:
        patch.setattr(logs, "_committed", lambda _: (_ for _ in ()).throw(DBAPIError("lost", {}, Exception())))
        with pytest.raises(DBAPIError):
            logs.append(KEY, 0, 2, b"cd")
    assert logs._committed == real
    assert logs.append(KEY, 0, 2, b"cdef") == 6
    assert whole_log(logs) == b"abcdef"


def test_append__two_daemons_of_one_node_duplicate_nothing(database: Engine) -> None:
    whole = b"".join(b"line %d\n" % i for i in range(400))

    def send(logs: SqlLogStore) -> None:
        at = 0
        while at < len(whole):
            at = logs.append(KEY, 0, at, whole[at : at + 100])

    writers = [SqlLogStore(database), SqlLogStore(database)]
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(send, writers))
    assert whole_log(SqlLogStore(database)) == whole


def test_append__splits_large_data_into_chunks(database: Engine) -> None:
    data = random.Random(1).randbytes(2 * sql_reader.CHUNK_BYTES + 17)
    logs = SqlLogStore(database)
    assert logs.append(KEY, 0, 0, data) == len(data)
    assert [chunk.length for chunk in logs.reader(KEY).read_new()] == [2**20, 2**20, 17]
    assert whole_log(logs) == data


def test_append_all__joins_small_pieces_of_one_rank_into_a_row(database: Engine) -> None:
    logs = SqlLogStore(database)
    logs.append_all([(KEY, 0, 0, b"a"), (KEY, 0, 1, b"b"), (KEY, 1, 0, b"c"), (KEY, 0, 2, b"d")])
    reader = logs.reader(KEY)
    assert [logs.read_chunk(KEY, chunk) for chunk in reader.read_new()] == [b"ab", b"c", b"d"]
    assert reader.next_number == 3


def test_append_all__continues_after_the_writes_of_another_daemon(database: Engine) -> None:
    one, two = SqlLogStore(database), SqlLogStore(database)
    assert one.append_all([(KEY, 0, 0, b"ab")]) == [2]
    assert two.append_all([(KEY, 0, 0, b"abcd")]) == [4]
    assert one.append_all([(KEY, 0, 2, b"cdef")]) == [6]
    assert two.append_all([(KEY, 1, 0, b"x"), (KEY, 0, 4, b"efg")]) == [1, 7]
    assert whole_log(one) == b"abcdefg"


@pytest.mark.parametrize("is_live", [True, False])
def test_append_all__notifies_other_live_daemons(database: Engine, is_live: bool) -> None:
    if database.dialect.name != "postgresql":
        return
    until = "date_part('epoch', clock_timestamp()) + " + ("60" if is_live else "-60")
    with database.begin() as conn:
        for owner, lease_until in (("one", "1e12"), ("two", until)):
            values = f"'{owner}', 0, {lease_until}, '', ''"
            conn.exec_driver_sql(
                f"INSERT INTO controller (id, started_at, lease_until, endpoint, schema_revision) VALUES ({values})"
            )
    logs = SqlLogStore(database, "one")
    logs.append_all([(KEY, 0, 0, b"a"), (OTHER, 0, 0, b"b")])
    with psycopg.connect(psycopg_url(database.url.render_as_string(hide_password=False)), autocommit=True) as conn:
        conn.execute(f"LISTEN {pg_notify.CHANNEL}")
        logs.append_all([(OTHER, 0, 1, b"d"), (KEY, 0, 1, b"c")])
        conn.execute("SELECT pg_notify(%s, 'done')", [pg_notify.CHANNEL])
        payloads = [
            notification.payload for notification in conn.notifies(timeout=scaled(10.0), stop_after=2 if is_live else 1)
        ]
    assert payloads == [*(["log 1,2"] if is_live else []), "done"]


def test_has_written__distinguishes_own_server_processes(database: Engine) -> None:
    if database.dialect.name != "postgresql":
        return
    one, two = SqlLogStore(database), SqlLogStore(open_database(database.url.render_as_string(hide_password=False)))
    for logs in (one, two):
        logs.append(KEY, 0, 0, b"a")
    writers = [set(logs._writers) for logs in (one, two)]
    assert all(writers)
    assert not writers[0] & writers[1]
    assert all(one.has_written(process_id) and not two.has_written(process_id) for process_id in writers[0])
    two._database.dispose()
