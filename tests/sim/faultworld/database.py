"""The database of a simulated world: SQLite in memory, created once and reset for each history.

A process uses it through `DatabaseClient`. At the begin and the end of a transaction, and before each query outside of
one, the database may fail, the process may die, and other threads may run. A transaction itself is one step.
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
from perdure.controller.peers import lease, watcher
from perdure.controller.store.engine import pg_notify
from perdure.controller.store.engine.database import as_of, migrate
from perdure.controller.store.engine.pg_notify import Topic

POLL_INTERVAL_S = 6.0

if TYPE_CHECKING:
    from faultworld.process import Process
    from faultworld.world import World


@functools.cache
def engine() -> Engine:
    """One engine for all histories of this process, so that SQLAlchemy compiles each statement once."""
    created = create_engine("sqlite://", poolclass=StaticPool)
    created._connection_cls = _Connection
    with created.connect() as connection:
        connection.exec_driver_sql("PRAGMA foreign_keys=ON")
    return created


class _Connection(Connection):
    """Lets other threads run before each query outside of a transaction.

    It passes the world's time to queries that use the clock of the database: the clock of the process may be off.
    """

    def execute(self, *args: Any, **options: Any) -> Any:
        thread = getcurrent()
        if isinstance(thread, Thread):
            if thread.is_reading:
                thread.process.maybe_yield()
            if len(args) > 1 and args[1] and "database_now" in args[1]:
                args = (args[0], {**args[1], **as_of(thread.process.world.scheduler.now())})
        return super().execute(*args, **options)


@functools.cache
def _template() -> bytes:
    migrate(engine())
    return _raw().serialize()


def _raw() -> sqlite3.Connection:
    with engine().connect() as connection:
        raw = connection.connection.driver_connection
    assert isinstance(raw, sqlite3.Connection)
    return raw


def new_database() -> sqlite3.Connection:
    """Reset the database to an empty one. Returns the raw connection, for queries outside of the simulation."""
    template = _template()
    raw = _raw()
    raw.deserialize(template)
    raw.execute("PRAGMA foreign_keys=ON")
    return raw


@contextmanager
def bind_database(world: World) -> Iterator[list[tuple[Topic, int]]]:
    """Give the database the clock of the world, and collect the notifications that transactions send."""
    sent: list[tuple[Topic, int]] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lease, "database_now", lambda _conn, _now: literal(world.scheduler.now()))
        # Fewer polls make a history cheaper to simulate, and it detects as much.
        patch.setattr(watcher, "POLL_INTERVAL_S", POLL_INTERVAL_S)
        patch.setattr(watcher, "_FULL_SCAN_INTERVAL_S", 2 * POLL_INTERVAL_S)
        patch.setattr(
            pg_notify, "notify_all", lambda _conn, topic, jobs: sent.extend((topic, job_id) for job_id in jobs)
        )
        yield sent


class _TransactionAborted(Exception):
    """The process freezes within its transaction, and the database aborts the transaction."""


class DatabaseClient:
    """One process's `Engine`, with failpoints. Every method raises the errors of the database, or `Killed`."""

    def __init__(self, process: Process) -> None:
        self._process = process

    @property
    def dialect(self) -> Dialect:
        return engine().dialect

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        process = self._process
        process.failpoint("a transaction begins")
        self._maybe_fail("begin")
        pending = process.world.notifications
        try:
            pending.clear()
            with engine().begin() as connection:
                yield connection
                if process.failpoint("before a commit", can_wait=False):
                    raise _TransactionAborted
                self._maybe_fail("commit")
        except _TransactionAborted:
            process.freeze()
            raise self._error("the connection was ended by the database") from None
        sent = tuple(pending)
        process.world.invariants.on_commit(process)
        process.world.notify(sent)
        process.failpoint("after a commit")
        self._maybe_fail("committed")

    @contextmanager
    def connect(self) -> Iterator[Connection]:
        self._process.failpoint("a query")
        self._maybe_fail("begin")
        thread = getcurrent()
        with engine().connect() as connection:
            if not isinstance(thread, Thread):
                yield connection
                return
            thread.is_reading = True
            try:
                yield connection
            finally:
                thread.is_reading = False

    def _maybe_fail(self, moment: str) -> None:
        if self._process.world.database_fails(self._process, moment):
            raise self._error(moment)

    def _error(self, what: str) -> OperationalError:
        return OperationalError(what, None, Exception(f"the database failed: {what}"))
