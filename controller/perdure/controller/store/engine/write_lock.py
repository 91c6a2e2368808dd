"""A fair lock for the writers of a SQLite file within this process.

SQLite lets one connection write at a time. The others sleep and retry, up to a tenth of a second later, so a thread
that writes all the time would starve them. Here writers take turns in the order in which they asked.
"""

from __future__ import annotations

import collections
import threading
from typing import Any

from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.pool import ConnectionPoolEntry

_HOLDS_LOCK = "perdure.holds_write_lock"


def serialize_writers(engine: Engine, timeout_s: float) -> None:
    """Give the writers of `engine` a FIFO lock, from a connection's first write until it returns to the pool.

    A writer that has waited for `timeout_s` goes on without the lock and relies on SQLite's own.
    """
    lock = FifoLock()

    def before_execute(conn: Connection, _cursor: Any, _sql: str, _parameters: Any, context: Any, _many: bool) -> None:
        writes = context.isinsert or context.isupdate or context.isdelete
        if writes and _HOLDS_LOCK not in conn.info and lock.acquire(timeout_s):
            conn.info[_HOLDS_LOCK] = True

    def on_checkin(_connection: DBAPIConnection | None, record: ConnectionPoolEntry) -> None:
        if record.info.pop(_HOLDS_LOCK, False):
            lock.release()

    event.listen(engine, "before_cursor_execute", before_execute)
    event.listen(engine, "checkin", on_checkin)


class FifoLock:
    """A lock that goes to the thread that has waited longest."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._is_taken = False
        self._waiting: collections.deque[threading.Lock] = collections.deque()

    def acquire(self, timeout_s: float) -> bool:
        """Wait for the lock. False if `timeout_s` passed first."""
        with self._guard:
            if not self._is_taken:
                self._is_taken = True
                return True
            mine = threading.Lock()
            mine.acquire()
            self._waiting.append(mine)
        if mine.acquire(timeout=timeout_s):
            return True
        with self._guard:
            if mine in self._waiting:
                self._waiting.remove(mine)
                return False
        return True  # it was handed over at that very moment

    def release(self) -> None:
        with self._guard:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._is_taken = False
