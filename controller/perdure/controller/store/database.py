"""Opens the database and brings its schema up to date."""

from __future__ import annotations

import contextlib
import os
import re
import time
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Engine,
    Float,
    FromClause,
    Table,
    bindparam,
    create_engine,
    event,
    func,
    inspect,
    literal,
    text,
)
from sqlalchemy.dialects import sqlite
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.engine.url import URL, make_url
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, IntegrityError, InvalidatePoolError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.pool import ConnectionPoolEntry, PoolProxiedConnection
from sqlalchemy.sql.compiler import SQLCompiler

from perdure.controller.settings import SettingsError
from perdure.controller.store.inline import in_line

MIGRATIONS = Path(__file__).parent / "migrations"

UNAVAILABLE = (DBAPIError, PoolTimeout)
"""What is raised when the database can not be used now. What a transaction did before is not known: look again."""

_USED_AT = "perdure.used_at"
_MIGRATING = 0x686F6C6466617374  # the advisory lock of those who migrate
_CONNECT_TIMEOUT_S = 5
_BUSY_S = 30.0  # how long a writer of SQLite waits for others
# A connection that is quiet within a transaction belongs to a process that is frozen or cut off. It holds rows that
# others wait for, so it is ended well before its lease is.
_SERVER_SIDE = "-c statement_timeout=30s -c lock_timeout=15s -c idle_in_transaction_session_timeout=4s"
_IDLE_S = 1.0  # a connection that was used less long ago is taken for sound
_POSTGRES: dict[str, Any] = {
    "pool_size": 8,
    "max_overflow": 8,
    "pool_timeout": 15.0,
    "connect_args": {
        "connect_timeout": _CONNECT_TIMEOUT_S,
        "options": _SERVER_SIDE,
        "application_name": "perdure",
        "keepalives_idle": 5,
        "keepalives_interval": 2,
        "keepalives_count": 3,
        "tcp_user_timeout": 15_000,
    },
}


def is_away(error: Exception) -> bool:
    """Whether `error` will pass with the database's trouble; False for what it will refuse every time."""
    return isinstance(error, UNAVAILABLE) and not isinstance(error, DataError | IntegrityError | ProgrammingError)


class CannotOpen(SettingsError):
    """The database can not be used. The text says why and what to do."""

    def __init__(self, url: str, why: str) -> None:
        super().__init__(f"the database {shown(url)} can not be opened: {why}")


def shown(url: str) -> str:
    """`url` as it may be shown: a file's name, or a URL without its password."""
    if url.startswith("sqlite:///"):
        return url.removeprefix("sqlite:///")
    return re.sub(r"(//[^:/@]*):[^@/]*@", r"\1:***@", url)


def open_database(url: str) -> Engine:
    """An engine on `url` with every migration applied.

    SQLite runs in WAL mode, so readers never wait for the writer; `synchronous=FULL`, because a job that was accepted
    is not lost to a power cut. A database that is one revision newer than this code is used as it is: a migration only
    adds (docs/adr/0007). Raises `CannotOpen`.
    """
    try:
        engine = make_engine(url)
        found = revision_of(engine)
        if found is not None and int(found) > int(head()) + 1:
            raise CannotOpen(url, f"it is at revision {found}, this version knows {head()}; install a newer version")
        if found is None or found < head():
            _refuse_to_leave_behind(engine, url)
            migrate(engine)
    except (DBAPIError, ArgumentError) as error:
        raise CannotOpen(url, f"{_said(error)}; nothing in it was changed: {_what_to_do(url)}") from error
    return engine


def migrate_aside(url: str) -> None:
    """`open_database` in a child process, which takes with it what migrating needs: 8 MiB, for once.

    Says nothing of how that went: whoever opens the database next is told. Call it before there are any threads.
    """
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            open_database(url).dispose()
        os._exit(0)
    os.waitpid(child, 0)


def make_engine(url: str) -> Engine:
    """An engine on `url`, as it is. Raises ArgumentError, or CannotOpen where the driver is missing.

    An error's text goes to the log; the parameters of its statement are the user's, and stay out of it.
    """
    parsed = make_url(url)
    if parsed.get_backend_name() == "sqlite":
        engine = create_engine(parsed, hide_parameters=True)
        event.listen(engine, "connect", _sqlite_pragmas)
        in_line(engine, _BUSY_S)
        return engine
    if parsed.get_backend_name() != "postgresql":
        raise CannotOpen(url, "it is neither SQLite nor PostgreSQL; begin database.url with postgresql://")
    try:
        engine = create_engine(parsed.set(drivername="postgresql+psycopg"), hide_parameters=True, **_POSTGRES)
        event.listen(engine, "checkin", _was_used)
        event.listen(engine, "checkout", partial(_ping, engine))
        return engine
    except ModuleNotFoundError as error:
        raise CannotOpen(url, "its driver is not installed; run: pip install 'perdure[postgres]'") from error


def psycopg_url(url: str) -> str:
    """`url` as psycopg itself takes it."""
    parsed: URL = make_url(url).set(drivername="postgresql")
    return parsed.render_as_string(hide_password=False)


def head() -> str:
    """The newest revision that this code knows."""
    return max(path.name.split("_", 1)[0] for path in (MIGRATIONS / "versions").glob("[0-9]*.py"))


def revision_of(engine: Engine) -> str | None:
    """The revision that the database is at; None for an empty one."""
    if not inspect(engine).has_table("alembic_version"):
        return None
    with engine.connect() as connection:
        found: str | None = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    return found


def migrate(engine: Engine, revision: str = "head") -> None:
    """Apply migrations up to `revision`. Safe to call on a database that is up to date, and from many at once."""
    with engine.begin() as connection:
        migrate_on(connection, revision)


def migrate_on(connection: Connection, revision: str = "head") -> None:
    """`migrate`, as a part of the caller's transaction."""
    from alembic import command

    if connection.dialect.name == "postgresql":
        connection.execute(text("SET LOCAL lock_timeout = '60s'"))
        # An index of many rows takes longer than anything that is done every day.
        connection.execute(text("SET LOCAL statement_timeout = 0"))
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _MIGRATING})
    command.upgrade(_alembic(connection), revision)


def migrate_back(engine: Engine, revision: str) -> None:
    """Undo migrations down to `revision`; what only newer ones could keep is lost."""
    from alembic import command

    with engine.begin() as connection:
        command.downgrade(_alembic(connection), revision)


def database_now(conn: Connection, now: float) -> ColumnElement[float]:
    """Epoch seconds on the one clock that all who share the database share: the server's, or else `now`."""
    return _server_now() if conn.dialect.name == "postgresql" else literal(now)


class _DatabaseNow(ColumnElement[float]):
    inherit_cache = True
    type = Float()


@compiles(_DatabaseNow)
def _compiled(_: _DatabaseNow, compiler: SQLCompiler, **options: Any) -> str:
    is_server = compiler.dialect.name == "postgresql"
    return compiler.process(_server_now() if is_server else bindparam("database_now", type_=Float), **options)


DATABASE_NOW = _DatabaseNow()
"""`database_now` for statements that are made once: execute them with `as_of(now)`."""


def as_of(now: float) -> dict[str, float]:
    """The parameter of DATABASE_NOW."""
    return {"database_now": now}


def _server_now() -> ColumnElement[float]:
    return func.date_part("epoch", func.clock_timestamp())


def insert_into(conn: Connection, table: FromClause) -> Any:
    """An INSERT that knows ON CONFLICT, which both dialects write alike."""
    return insert_for(conn.dialect.name, table)


def insert_for(dialect: str, table: FromClause) -> Any:
    """`insert_into` for a dialect by its name."""
    assert isinstance(table, Table)
    if dialect == "postgresql":
        from sqlalchemy.dialects import postgresql  # 2 MiB that SQLite does without

        return postgresql.insert(table)
    return sqlite.insert(table)


def _alembic(connection: Connection) -> Any:
    from alembic.config import Config  # half a second to import, and seldom needed

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["connection"] = connection
    return config


def _refuse_to_leave_behind(engine: Engine, url: str) -> None:
    """A running controller can use a schema one revision newer than it knows, and no more. Raises CannotOpen."""
    is_shared = engine.dialect.name == "postgresql" and inspect(engine).has_table("controller")
    if not is_shared or all(column["name"] != "knows" for column in inspect(engine).get_columns("controller")):
        return
    alive = "lease_until >= date_part('epoch', clock_timestamp()) AND knows <> ''"
    with engine.connect() as conn:
        oldest = conn.execute(text(f"SELECT min(knows) FROM controller WHERE {alive}")).scalar()  # noqa: S608
    if oldest is not None and int(oldest) + 1 < int(head()):
        why = f"a running controller knows its revision {oldest} alone, and this version makes it {head()}"
        raise CannotOpen(url, f"{why}; go there by the versions between, or stop that controller first")


def _said(error: Exception) -> str:
    return str(getattr(error, "orig", None) or error).strip()


def _what_to_do(url: str) -> str:
    if url.startswith("postgres"):
        return "see that it runs, and that database.url names it, a user and a password that it knows"
    return "put a sound copy there, or move it away"


def _was_used(_connection: DBAPIConnection | None, record: ConnectionPoolEntry) -> None:
    record.info[_USED_AT] = time.monotonic()


def _ping(engine: Engine, connection: Any, record: ConnectionPoolEntry, _: PoolProxiedConnection) -> None:
    """See that a connection that was idle still leads somewhere; otherwise the pool has another in its place. Asking
    every time would be one more round trip for each transaction."""
    used_at = record.info.get(_USED_AT)
    if used_at is None or time.monotonic() - used_at < _IDLE_S:
        return
    try:
        is_alive = engine.dialect.do_ping(connection)
    except engine.dialect.loaded_dbapi.Error:
        is_alive = False
    if not is_alive:
        raise InvalidatePoolError


def _sqlite_pragmas(connection: DBAPIConnection, _record: ConnectionPoolEntry) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute(f"PRAGMA busy_timeout={_BUSY_S * 1000:.0f}")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()
