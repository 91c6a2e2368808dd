"""The lock for the writers of a SQLite file."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Column, Engine, Integer, MetaData, Table, create_engine, insert, select

from perdure.controller.store.engine.write_lock import FifoLock, serialize_writers

ROWS = Table("row", MetaData(), Column("id", Integer, primary_key=True))


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{tmp_path / 'x.db'}", connect_args={"timeout": 0.0})  # no busy timeout
    serialize_writers(engine, 10.0)
    ROWS.create(engine)
    yield engine
    engine.dispose()


def wait_for_waiters(lock: FifoLock, count: int) -> None:
    while len(lock._waiting) < count:
        threading.Event().wait(0.001)


def test_fifo_lock__serves_waiters_in_order() -> None:
    lock, order = FifoLock(), []

    def go(number: int) -> Callable[[], None]:
        def run() -> None:
            assert lock.acquire(10.0)
            order.append(number)
            lock.release()

        return run

    assert lock.acquire(10.0)
    threads = [threading.Thread(target=go(number)) for number in range(5)]
    for number, thread in enumerate(threads):
        thread.start()
        wait_for_waiters(lock, number + 1)
    lock.release()
    for thread in threads:
        thread.join()
    assert order == [0, 1, 2, 3, 4]
    assert lock.acquire(0.0), "the lock is free again"


def test_fifo_lock__forgets_a_waiter_that_timed_out() -> None:
    lock = FifoLock()
    assert lock.acquire(0.0)
    assert not lock.acquire(0.01)
    lock.release()
    assert lock.acquire(0.0)


def test_engine__concurrent_writers_never_find_the_database_locked(engine: Engine) -> None:
    errors: list[Exception] = []

    def write() -> None:
        try:
            for _ in range(20):
                with engine.begin() as conn:
                    conn.execute(insert(ROWS))
                    conn.execute(insert(ROWS))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    with engine.connect() as conn:
        assert len(conn.execute(select(ROWS)).all()) == 160


def test_engine__abandoned_transaction_releases_the_lock(engine: Engine) -> None:
    conn = engine.connect()
    conn.execute(insert(ROWS))
    conn.close()
    with engine.begin() as conn:
        conn.execute(insert(ROWS))
    with engine.connect() as conn:
        assert len(conn.execute(select(ROWS)).all()) == 1
