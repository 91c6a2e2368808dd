"""Opens the database and brings its schema up to date."""

from __future__ import annotations

import contextlib
import os
import re
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import structlog
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
from sqlalchemy.engine.interfaces import DBAPIConnection, ExceptionContext
from sqlalchemy.engine.url import URL, make_url
from sqlalchemy.exc import ArgumentError, DataError, DBAPIError, IntegrityError, InvalidatePoolError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.pool import ConnectionPoolEntry, PoolProxiedConnection
from sqlalchemy.sql.compiler import SQLCompiler

from perdure.controller.runtime.config.config_file import SettingsError
from perdure.controller.runtime.disk_space import disk_advice, is_disk_error
from perdure.controller.store.engine.database_url import redacted, without_passwords
from perdure.controller.store.engine.write_lock import serialize_writers
from perdure.sdk.connection.installation import install_command

log = structlog.get_logger(__name__)

MIGRATIONS = Path(__file__).parents[1] / "migrations"

UNAVAILABLE = (DBAPIError, PoolTimeout)
"""Raised while the database is unavailable. The outcome of the transaction is then unknown: read the rows again."""

_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
_USED_AT = "perdure.used_at"
_MIGRATION_LOCK = 0x7065726475726501  # an advisory lock: one process migrates at a time
_CONNECT_TIMEOUT_S = 5
_BUSY_TIMEOUT_S = 30.0  # how long a SQLite writer waits for others
# A connection that is idle in a transaction belongs to a process that is frozen or cut off. It holds locks that others
# wait for, so the server ends it well before the process loses its lease.
_SERVER_OPTIONS = "-c statement_timeout=30s -c lock_timeout=15s -c idle_in_transaction_session_timeout=4s"
_BUSY_PAUSE_S, _MAX_BUSY_PAUSE_S = 1.0, 10.0  # between attempts to connect to a busy server
# libpq does not pass on the SQLSTATE of a connection that is refused, only its text.
_BUSY_SERVER = re.compile("too many (clients|connections)|slots are reserved|system is (starting up|not yet)")
_NEVER = threading.Event()
_PING_AFTER_IDLE_S = 1.0  # a connection that was used more recently is not checked
_POSTGRES: dict[str, Any] = {
    "pool_size": 8,
    "max_overflow": 8,
    "pool_timeout": 15.0,
    "connect_args": {
        "connect_timeout": _CONNECT_TIMEOUT_S,
        "options": _SERVER_OPTIONS,
        "application_name": "perdure",
        "keepalives_idle": 5,
        "keepalives_interval": 2,
        "keepalives_count": 3,
        "tcp_user_timeout": 15_000,
    },
}


def is_transient(error: Exception) -> bool:
    """Whether the same statement may succeed later. False for an error that it would cause every time."""
    return isinstance(error, UNAVAILABLE) and not isinstance(error, DataError | IntegrityError | ProgrammingError)


class CannotOpen(SettingsError):
    """The database cannot be used. The text says why and what to do."""

    def __init__(self, url: str, why: str) -> None:
        super().__init__(f"the database {redacted(url)} cannot be opened: {without_passwords(why, url)}")


class ServerBusy(CannotOpen):
    """The database server has no connection to spare now, or is still starting."""


def open_database(url: str, *, pause: Callable[[float], object] = _NEVER.wait) -> Engine:
    """An engine on `url` with every migration applied. Waits for a server that is starting or has too many clients.

    SQLite runs in WAL mode, so that readers never wait for the writer, and with `synchronous=FULL`, so that a power cut
    loses no accepted job. A database that is one revision newer than this code is used as it is, because a migration
    only adds (docs/contributing/migrations.md). Raises `CannotOpen`.
    """
    pause_s = _BUSY_PAUSE_S
    while True:
        try:
            return _open_now(url)
        except ServerBusy as error:
            log.warning("database.busy", error=str(error), retry_in_s=pause_s)
            pause(pause_s)
            pause_s = min(2 * pause_s, _MAX_BUSY_PAUSE_S)


def _open_now(url: str) -> Engine:
    """`open_database` without waiting. Raises `CannotOpen`, or `ServerBusy` for a server to wait for."""
    try:
        engine = make_engine(url)
        revision = revision_of(engine)
        if revision is not None and int(revision) > int(head_revision()) + 1:
            raise CannotOpen(
                url, f"it is at revision {revision}, this version supports {head_revision()}; install a newer version"
            )
        if revision is None or revision < head_revision():
            _check_running_controllers(engine, url)
            migrate(engine)
    except (DBAPIError, ArgumentError) as error:
        text = _error_text(error)
        kind = ServerBusy if url.startswith("postgres") and _BUSY_SERVER.search(text) else CannotOpen
        raise kind(url, f"{text}; nothing in it was changed: {_advice(url, error)}") from error
    return engine


@contextlib.contextmanager
def damage_reported(url: str) -> Iterator[None]:
    """Turn an error of the block into `CannotOpen` if it says that the SQLite file is damaged.

    Opening a database does not read each of its pages.
    """
    try:
        yield
    except DBAPIError as error:
        if not _is_damage(error):
            raise
        raise CannotOpen(url, f"{_error_text(error)}; nothing in it was changed: {_advice(url, error)}") from error


def migrate_in_child(url: str) -> None:
    """Migrate the database in a child process, so that this one does not keep the 8 MiB that migrating needs.

    Reports no errors: the next `open_database` does. Call it before any thread is started.
    """
    child = os.fork()
    if child == 0:
        with contextlib.suppress(BaseException):
            _open_now(url).dispose()
        os._exit(0)
    os.waitpid(child, 0)


def make_engine(url: str) -> Engine:
    """An engine on `url`, as it is. Raises ArgumentError, or CannotOpen where the driver is missing.

    The texts of errors go to the log. They leave out the parameters of statements, which may hold the user's secrets.
    """
    try:
        parsed = make_url(url)
    except ValueError as error:  # of a port that is no number
        raise ArgumentError(str(error)) from error
    if parsed.get_backend_name() == "sqlite":
        engine = create_engine(parsed, hide_parameters=True)
        event.listen(engine, "connect", _sqlite_pragmas)
        serialize_writers(engine, _BUSY_TIMEOUT_S)
        return engine
    if parsed.get_backend_name() != "postgresql":
        raise CannotOpen(url, "it is neither SQLite nor PostgreSQL; begin database.url with postgresql://")
    try:
        engine = create_engine(parsed.set(drivername="postgresql+psycopg"), hide_parameters=True, **_POSTGRES)
        event.listen(engine, "checkin", _record_use)
        event.listen(engine, "handle_error", _hide_details)
        event.listen(engine, "checkout", partial(_ping, engine))
        return engine
    except ModuleNotFoundError as error:
        raise CannotOpen(url, f"its driver is not installed; run: {install_command('postgres')}") from error


def psycopg_url(url: str) -> str:
    """`url` as psycopg itself takes it."""
    parsed: URL = make_url(url).set(drivername="postgresql")
    return parsed.render_as_string(hide_password=False)


def head_revision() -> str:
    """The newest revision that this code has a migration for."""
    return max(path.name.split("_", 1)[0] for path in (MIGRATIONS / "versions").glob("[0-9]*.py"))


def revision_of(engine: Engine) -> str | None:
    """The revision that the database is at; None for an empty one."""
    if not inspect(engine).has_table("alembic_version"):
        return None
    with engine.connect() as connection:
        revision: str | None = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    return revision


def migrate(engine: Engine, revision: str = "head") -> None:
    """Apply migrations up to `revision`, all or none. Idempotent, and safe when several processes call it at once.

    A new SQLite file gets the newest schema at once: each daemon that starts on a new home would wait for Alembic.
    """
    with engine.begin() as connection:
        if connection.dialect.name == "sqlite":
            connection.exec_driver_sql("BEGIN IMMEDIATE")  # the driver begins no transaction for CREATE and ALTER
            if revision == "head" and not connection.exec_driver_sql("SELECT 1 FROM sqlite_master LIMIT 1").first():
                _create_schema(connection)
                return
        migrate_on(connection, revision)


def _create_schema(connection: Connection) -> None:
    """Create in an empty SQLite database what all migrations together create, in their order: SQLite chooses between
    indexes by it. `python -m scripts.schema` writes the file, and a test compares it with the migrations."""
    statement = ""
    for line in (MIGRATIONS / "schema.sql").read_text().splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            connection.exec_driver_sql(statement)
            statement = ""
    connection.execute(text("INSERT INTO alembic_version VALUES (:head)"), {"head": head_revision()})


def migrate_on(connection: Connection, revision: str = "head") -> None:
    """`migrate`, as a part of the caller's transaction."""
    from alembic import command

    if connection.dialect.name == "postgresql":
        connection.execute(text("SET LOCAL lock_timeout = '60s'"))
        # Creating an index on many rows takes longer than the usual limit.
        connection.execute(text("SET LOCAL statement_timeout = 0"))
        connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": _MIGRATION_LOCK})
    command.upgrade(_alembic(connection), revision)


def database_now(conn: Connection, now: float) -> ColumnElement[float]:
    """Epoch seconds on the clock that all controllers of the database share: the server's, or for SQLite `now`."""
    return _server_now() if conn.dialect.name == "postgresql" else literal(now)


class _DatabaseNow(ColumnElement[float]):
    inherit_cache = True
    type = Float()


@compiles(_DatabaseNow)
def _compile_database_now(_: _DatabaseNow, compiler: SQLCompiler, **options: Any) -> str:
    is_server = compiler.dialect.name == "postgresql"
    return compiler.process(_server_now() if is_server else bindparam("database_now", type_=Float), **options)


DATABASE_NOW = _DatabaseNow()
"""`database_now` for statements that are built once: execute them with the parameters `as_of(now)`."""


def as_of(now: float) -> dict[str, float]:
    """The parameter of DATABASE_NOW."""
    return {"database_now": now}


def _server_now() -> ColumnElement[float]:
    return func.date_part("epoch", func.clock_timestamp())


def insert_into(conn: Connection, table: FromClause) -> Any:
    """An INSERT that supports ON CONFLICT, which both dialects write in the same way."""
    return insert_for(conn.dialect.name, table)


def insert_for(dialect: str, table: FromClause) -> Any:
    """`insert_into` for a dialect by its name."""
    assert isinstance(table, Table)
    if dialect == "postgresql":
        from sqlalchemy.dialects import postgresql  # 2 MiB that a controller on SQLite does not need

        return postgresql.insert(table)
    return sqlite.insert(table)


def _alembic(connection: Connection) -> Any:
    from alembic.config import Config  # takes half a second to import and is rarely needed

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["connection"] = connection
    return config


def _check_running_controllers(engine: Engine, url: str) -> None:
    """Refuse to migrate while a running controller would be two revisions behind. Raises CannotOpen."""
    is_shared = engine.dialect.name == "postgresql" and inspect(engine).has_table("controller")
    if not is_shared or all(
        column["name"] != "schema_revision" for column in inspect(engine).get_columns("controller")
    ):
        return
    alive = "lease_until >= date_part('epoch', clock_timestamp()) AND schema_revision <> ''"
    with engine.connect() as conn:
        oldest = conn.execute(text(f"SELECT min(schema_revision) FROM controller WHERE {alive}")).scalar()  # noqa: S608
    if oldest is not None and int(oldest) + 1 < int(head_revision()):
        why = f"a running controller supports revision {oldest}, and this version migrates to {head_revision()}"
        raise CannotOpen(url, f"{why}; upgrade through the versions in between, or stop that controller first")


def _error_text(error: Exception) -> str:
    return str(getattr(error, "orig", None) or error).strip()


def _advice(url: str, error: Exception) -> str:
    if url.startswith("postgres"):
        return "check that the server runs, and that database.url has the right host, user and password"
    folder = Path(redacted(url)).parent
    if is_disk_error(error):
        return disk_advice(folder)
    if _is_damage(error):
        return (
            "restore it from a backup; without one, move it away and start again: the message says what is lost with "
            "it, and how to accept that"
        )
    return f"check that {folder} and the files in it belong to you and can be written"


def _is_damage(error: Exception) -> bool:
    code = getattr(getattr(error, "orig", None), "sqlite_errorcode", None)
    return code is not None and code & 0xFF in _DAMAGED  # the higher bits say which part is damaged


def _hide_details(context: ExceptionContext) -> None:
    """Reduce an error of the server to its first line. DETAIL and CONTEXT quote rows and parameters."""
    diagnosis = getattr(context.original_exception, "diag", None)
    primary = getattr(diagnosis, "message_primary", None)
    if primary is not None:
        before = str(context.original_exception)
        for error in (context.original_exception, context.sqlalchemy_exception):
            if error is not None:
                error.args = tuple(
                    argument.replace(before, primary) if isinstance(argument, str) else argument
                    for argument in error.args
                )


def _record_use(_connection: DBAPIConnection | None, record: ConnectionPoolEntry) -> None:
    record.info[_USED_AT] = time.monotonic()


def _ping(engine: Engine, connection: Any, record: ConnectionPoolEntry, _: PoolProxiedConnection) -> None:
    """Check a connection that was idle; the pool replaces a broken one. A connection that was used a moment ago is not
    checked, which saves each transaction a round trip."""
    used_at = record.info.get(_USED_AT)
    if used_at is None or time.monotonic() - used_at < _PING_AFTER_IDLE_S:
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
    cursor.execute(f"PRAGMA busy_timeout={_BUSY_TIMEOUT_S * 1000:.0f}")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.execute("PRAGMA secure_delete=ON")  # what was deleted, such as secrets, does not stay in free pages
    cursor.close()
