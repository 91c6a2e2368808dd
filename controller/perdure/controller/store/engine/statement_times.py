"""Measures the statements and commits of an engine, including the time that they wait for a lock."""

from __future__ import annotations

import time
from typing import Any

from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine.interfaces import DBAPIConnection, ExceptionContext
from sqlalchemy.pool import ConnectionPoolEntry

from perdure.controller.runtime.metrics.metric_registry import Counter, Histogram

_COMMIT_AT = "perdure.commit_at"


def measure(engine: Engine, seconds: Histogram, errors: Counter) -> None:
    """Observe in `seconds`, by "read", "write" and "commit". A commit ends when its connection is back in the pool."""

    def before(_conn: Connection, _cursor: Any, _sql: str, _parameters: Any, context: Any, _many: bool) -> None:
        context.perdure_started = time.perf_counter()

    def after(_conn: Connection, _cursor: Any, _sql: str, _parameters: Any, context: Any, _many: bool) -> None:
        writes = context.isinsert or context.isupdate or context.isdelete
        seconds.observe(time.perf_counter() - context.perdure_started, "write" if writes else "read")

    def on_commit(conn: Connection) -> None:
        conn.info[_COMMIT_AT] = time.perf_counter()

    def on_checkin(_connection: DBAPIConnection | None, record: ConnectionPoolEntry) -> None:
        if (at := record.info.pop(_COMMIT_AT, None)) is not None:
            seconds.observe(time.perf_counter() - at, "commit")

    def on_error(_context: ExceptionContext) -> None:
        errors.inc()

    # First, so that the time that a writer waits for its turn counts.
    event.listen(engine, "before_cursor_execute", before, insert=True)
    event.listen(engine, "after_cursor_execute", after)
    event.listen(engine, "commit", on_commit)
    event.listen(engine, "checkin", on_checkin, insert=True)
    event.listen(engine, "handle_error", on_error)
