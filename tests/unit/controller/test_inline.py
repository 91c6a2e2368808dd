"""Writers of one SQLite file wait in line."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from sqlalchemy import Column, Engine, Integer, MetaData, Table, create_engine, insert, select

from perdure.controller.store.inline import Line, in_line

ROWS = Table("row", MetaData(), Column("id", Integer, primary_key=True))


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = create_engine(f"sqlite:///{tmp_path / 'x.db'}", connect_args={"timeout": 0.0})  # it waits for nobody
    in_line(engine, 10.0)
    ROWS.create(engine)
    yield engine
    engine.dispose()


def _waiting(line: Line, count: int) -> None:
    while len(line._waiting) < count:
        threading.Event().wait(0.001)


def test_who_came_first_goes_first() -> None:
    line, order = Line(), []

    def go(number: int) -> Callable[[], None]:
        def run() -> None:
            assert line.enter(10.0)
            order.append(number)
            line.leave()

        return run

    assert line.enter(10.0)
    threads = [threading.Thread(target=go(number)) for number in range(5)]
    for number, thread in enumerate(threads):
        thread.start()
        _waiting(line, number + 1)
    line.leave()
    for thread in threads:
        thread.join()
    assert order == [0, 1, 2, 3, 4]
    assert line.enter(0.0), "the line is empty again"


def test_who_waits_too_long_goes_without_and_is_not_waited_for() -> None:
    line = Line()
    assert line.enter(0.0)
    assert not line.enter(0.01)
    line.leave()
    assert line.enter(0.0)


def test_writers_of_an_engine_never_find_it_locked(engine: Engine) -> None:
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


def test_a_transaction_that_is_given_up_lets_the_next_one_in(engine: Engine) -> None:
    conn = engine.connect()
    conn.execute(insert(ROWS))
    conn.close()
    with engine.begin() as conn:
        conn.execute(insert(ROWS))
    with engine.connect() as conn:
        assert len(conn.execute(select(ROWS)).all()) == 1
