"""The database of a simulated world: SQLite in memory, made once and put back for each history.

A process sees it through `MortalDatabase`, which fails, or has the process die, where a transaction begins and ends.
"""

from __future__ import annotations

import functools
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import StaticPool

from holdfast.controller.store.database import migrate


@functools.cache
def engine() -> Engine:
    """One engine for every history of this process: what SQLAlchemy compiled once stays compiled."""
    made = create_engine("sqlite://", poolclass=StaticPool)
    event.listen(made, "connect", lambda connection, _: connection.execute("PRAGMA foreign_keys=ON"))
    return made


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


class MortalDatabase:
    """The engine as one process sees it.

    `point(name)` may raise and end the process. `trouble(moment)` says whether the database fails at this moment:
    "begin", "commit" (nothing was written) or "committed" (all was, but the answer is lost).
    """

    def __init__(
        self, point: Callable[[str], object], trouble: Callable[[str], bool], committed: Callable[[], object]
    ) -> None:
        self._point, self._trouble, self._committed = point, trouble, committed

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        self._point("a transaction begins")
        self._fail_at("begin")
        with engine().begin() as connection:
            yield connection
            self._point("before a commit")
            self._fail_at("commit")
        self._committed()
        self._point("after a commit")
        self._fail_at("committed")

    @contextmanager
    def connect(self) -> Iterator[Connection]:
        self._point("a query")
        self._fail_at("begin")
        with engine().connect() as connection:
            yield connection

    def _fail_at(self, moment: str) -> None:
        if self._trouble(moment):
            raise OperationalError(moment, None, Exception(f"the database failed at {moment}"))
