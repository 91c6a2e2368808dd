"""Opens the database and brings its schema up to date."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Engine, create_engine, event, inspect, text
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.pool import ConnectionPoolEntry

from holdfast.controller.settings import SettingsError

MIGRATIONS = Path(__file__).parent / "migrations"


class CannotOpen(SettingsError):
    """The database can not be used. The text says why and what to do."""

    def __init__(self, url: str, why: str) -> None:
        super().__init__(f"the database {url.removeprefix('sqlite:///')} can not be opened: {why}")


def open_database(url: str) -> Engine:
    """An engine on `url` with every migration applied.

    SQLite runs in WAL mode, so readers never wait for the writer; `synchronous=FULL`, because a job that was accepted
    is not lost to a power cut. Raises `CannotOpen`.
    """
    try:
        # An error's text goes to the log; the parameters of its statement are the user's, and stay out of it.
        engine = create_engine(url, pool_pre_ping=not url.startswith("sqlite"), hide_parameters=True)
        if engine.dialect.name == "sqlite":
            event.listen(engine, "connect", _sqlite_pragmas)
        found = revision_of(engine)
        if found is not None and found > head():
            raise CannotOpen(url, f"it is at revision {found}, this version knows {head()}; install a newer version")
        if found != head():
            migrate(engine)
    except (DBAPIError, ArgumentError) as error:
        said = getattr(error, "orig", None) or error
        raise CannotOpen(url, f"{said}; nothing in it was changed: put a sound copy there, or move it away") from error
    return engine


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
    """Apply migrations up to `revision`. Safe to call on a database that is up to date."""
    from alembic import command  # half a second to import, and seldom needed
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)


def _sqlite_pragmas(connection: DBAPIConnection, _record: ConnectionPoolEntry) -> None:
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute("PRAGMA busy_timeout=30000")
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.close()
