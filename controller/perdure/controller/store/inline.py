"""Writers of a SQLite file, in line: it lets one write at a time, and does not say who is next.

Who finds it taken sleeps and asks again, up to a tenth of a second later; a thread that writes all the time is always
back sooner. Here each waits for the one before it, within this process.
"""

from __future__ import annotations

import collections
import threading
from typing import Any

from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.pool import ConnectionPoolEntry

_HAS_TURN = "perdure.has_turn"


def in_line(engine: Engine, patience_s: float) -> None:
    """Have those who write by `engine` wait for each other in the order in which they came; from the first statement
    that writes until the connection is given back. Who has waited for `patience_s` tries without."""
    line = Line()

    def enter(conn: Connection, _cursor: Any, _sql: str, _parameters: Any, context: Any, _many: bool) -> None:
        writes = context.isinsert or context.isupdate or context.isdelete
        if writes and _HAS_TURN not in conn.info and line.enter(patience_s):
            conn.info[_HAS_TURN] = True

    def leave(_connection: DBAPIConnection | None, record: ConnectionPoolEntry) -> None:
        if record.info.pop(_HAS_TURN, False):
            line.leave()

    event.listen(engine, "before_cursor_execute", enter)
    event.listen(engine, "checkin", leave)


class Line:
    """A lock that is given to who has waited longest."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._is_taken = False
        self._waiting: collections.deque[threading.Lock] = collections.deque()

    def enter(self, patience_s: float) -> bool:
        """Wait for one's turn; False if it did not come in time."""
        with self._guard:
            if not self._is_taken:
                self._is_taken = True
                return True
            mine = threading.Lock()
            mine.acquire()
            self._waiting.append(mine)
        if mine.acquire(timeout=patience_s):
            return True
        with self._guard:
            if mine in self._waiting:
                self._waiting.remove(mine)
                return False
        return True  # it came in that moment

    def leave(self) -> None:
        with self._guard:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._is_taken = False
