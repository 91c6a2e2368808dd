"""The database of a simulated world: SQLite in memory, made once and put back for each history.

A process sees it through `MortalDatabase`, which fails, has the process die, or lets others go first, where a
transaction begins and ends, and between the questions of one who only reads. A transaction itself is one step.
"""

from __future__ import annotations

import functools
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from greenlet import getcurrent
from sqlalchemy import Connection, Dialect, Engine, create_engine, literal
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import StaticPool

from faultworld.threads import Thread
from perdure.controller import leases, watch
from perdure.controller.store import wake
from perdure.controller.store.database import as_of, migrate
from perdure.controller.store.wake import Topic

LOOK_S = 6.0

if TYPE_CHECKING:
    from faultworld.process import Process
    from faultworld.world import World


@functools.cache
def engine() -> Engine:
    """One engine for every history of this process: what SQLAlchemy compiled once stays compiled."""
    made = create_engine("sqlite://", poolclass=StaticPool)
    made._connection_cls = _Connection
    with made.connect() as connection:
        connection.exec_driver_sql("PRAGMA foreign_keys=ON")
    return made


class _Connection(Connection):
    """Who reads sees each of its questions answered as things are by then: others may go first.

    The database has a clock of its own, whatever the asking process takes the time for.
    """

    def execute(self, *said: Any, **options: Any) -> Any:
        thread = getcurrent()
        if isinstance(thread, Thread):
            if thread.reads:
                thread.process.may_wait()
            if len(said) > 1 and "database_now" in said[1]:
                said = (said[0], {**said[1], **as_of(thread.process.world.scheduler.now())})
        return super().execute(*said, **options)


@functools.cache
def _template() -> bytes:
    migrate(engine())
    return _raw().serialize()


def _raw() -> sqlite3.Connection:
    with engine().connect() as connection:
        found = connection.connection.driver_connection
    assert isinstance(found, sqlite3.Connection)
    return found


def new_database() -> sqlite3.Connection:
    """Put the database back to an empty one of the newest schema; the raw connection, for those who only look."""
    template = _template()
    raw = _raw()
    raw.deserialize(template)
    raw.execute("PRAGMA foreign_keys=ON")
    return raw


@contextmanager
def as_a_server(world: World) -> Iterator[list[tuple[Topic, int]]]:
    """The database's clock is the world's, and it collects what each transaction wants the others told."""
    notices: list[tuple[Topic, int]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(leases, "database_now", lambda _conn, _now: literal(world.scheduler.now()))
        # A world that is polled more seldom costs less to simulate, and tells as much.
        patch.setattr(watch, "LOOK_S", LOOK_S)
        patch.setattr(watch, "_ROUND_S", 2 * LOOK_S)
        patch.setattr(wake, "notify_all", lambda _conn, topic, jobs: notices.extend((topic, job_id) for job_id in jobs))
        yield notices


class _BrokenOff(Exception):
    """The process stands still in the middle of its transaction: the database ends that."""


class MortalDatabase:
    """The engine as one process sees it. Every method raises what the database raises, or `Killed`."""

    def __init__(self, process: Process) -> None:
        self._process = process

    @property
    def dialect(self) -> Dialect:
        return engine().dialect

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        process = self._process
        process.point("a transaction begins")
        self._fail_at("begin")
        notices = process.world.notices
        try:
            notices.clear()
            with engine().begin() as connection:
                yield connection
                if process.point("before a commit", waits=False):
                    raise _BrokenOff
                self._fail_at("commit")
        except _BrokenOff:
            process.stand_still()
            raise self._error("the connection was ended by the database") from None
        told = tuple(notices)
        process.world.judge.committed(process)
        process.world.notify(told)
        process.point("after a commit")
        self._fail_at("committed")

    @contextmanager
    def connect(self) -> Iterator[Connection]:
        self._process.point("a query")
        self._fail_at("begin")
        thread = getcurrent()
        with engine().connect() as connection:
            if not isinstance(thread, Thread):
                yield connection
                return
            thread.reads = True
            try:
                yield connection
            finally:
                thread.reads = False

    def _fail_at(self, moment: str) -> None:
        if self._process.world.database_trouble(self._process, moment):
            raise self._error(moment)

    def _error(self, what: str) -> OperationalError:
        return OperationalError(what, None, Exception(f"the database failed: {what}"))
