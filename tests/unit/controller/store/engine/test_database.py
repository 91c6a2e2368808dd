"""Opening a database: schema, connections, errors."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import traceback
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import Engine
from sqlalchemy.engine.url import make_url
from sqlalchemy.exc import DBAPIError

from perdure.controller.store.engine import database
from perdure.controller.store.engine.database import (
    CannotOpen,
    head_revision,
    make_engine,
    migrate,
    open_database,
    psycopg_url,
)
from perdure.controller.store.engine.database_url import without_passwords
from support.helpers.postgres_server import Postgres
from support.helpers.timing import wait_until


def test_open_database__second_open_changes_nothing(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    open_database(url).dispose()
    engine = open_database(url)
    with engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"


def test_pool__replaces_a_connection_that_died_while_idle(postgres: Postgres, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that was used a moment ago is not pinged, which saves a round trip each time."""
    engine = make_engine(postgres.new_database())
    pings: list[object] = []
    ping = engine.dialect.do_ping
    monkeypatch.setattr(engine.dialect, "do_ping", lambda one: pings.append(one) or ping(one))

    def backend_pid() -> int:
        with engine.connect() as conn:
            return int(conn.exec_driver_sql("SELECT pg_backend_pid()").scalar_one())

    first = backend_pid()
    assert backend_pid() == first
    assert not pings
    monkeypatch.setattr(database, "_PING_AFTER_IDLE_S", 0.0)
    assert backend_pid() == first
    assert len(pings) == 1
    postgres.sql(f"SELECT pg_terminate_backend({first})")
    assert backend_pid() != first
    engine.dispose()


@pytest.mark.parametrize("url", ["postgresql://nobody@127.0.0.1:1/none", "mysql://a/b", "nonsense"])
def test_open_database__error_names_the_database(url: str) -> None:
    with pytest.raises(CannotOpen, match=url[:20].replace("+", ".")):
        open_database(url)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://me:sesame@127.0.0.1:1/none", "postgresql://me:***@127.0.0.1:1/none"),
        ("postgresql://me:ses/ame@127.0.0.1:1/none", "postgresql://me:***@127.0.0.1:1/none"),
        ("postgresql://me:ses@ame@127.0.0.1:1/none", "postgresql://me:***@127.0.0.1:1/none"),
        ("postgresql://:sesame@127.0.0.1:1/none", "postgresql://:***@127.0.0.1:1/none"),
        ("postgresql://127.0.0.1:1/none?user=me&password=sesame", "127.0.0.1:1/none?user=me&password=***"),
        ("postgresql://127.0.0.1:1/none?PASSWORD=sesame&sslmode=disable", "none?PASSWORD=***&sslmode=disable"),
        ("postgresql://me:sesame@127.0.0.1:1/none?sslpassword=sesame", "me:***@127.0.0.1:1/none?sslpassword=***"),
        ("postgresql:///none?host=127.0.0.1&port=1&password=sesame", "none?host=127.0.0.1&port=1&password=***"),
        ("postgresql://me:ses%zz%40ame@127.0.0.1:1/none", "postgresql://me:***@127.0.0.1:1/none"),
        ("postgresql+psycopg://me:sesame@127.0.0.1:port/none", "me:***@127.0.0.1:port/none"),
        ("mysql://me:sesame@db/none", "mysql://me:***@db/none"),
        ("host=127.0.0.1 password=sesame", "***"),
    ],
)
def test_open_database__error_hides_every_password(url: str, shown: str) -> None:
    with pytest.raises(CannotOpen) as caught:
        open_database(url)
    assert shown in str(caught.value)
    for hidden in ("sesame", "ses/ame", "ses@ame", "ses%zz", "@ame"):
        assert hidden not in str(caught.value)


def test_without_passwords__hides_what_a_driver_quotes() -> None:
    url = "postgresql://me:p%40ss@db/x?password=open%20sesame"
    text = 'connection to "db" failed: bad "p@ss", "p%40ss", "open sesame"'
    assert without_passwords(text, url) == 'connection to "db" failed: bad "***", "***", "***"'


def test_server_errors__quote_no_data(postgres: Postgres) -> None:
    """DETAIL and CONTEXT have rows and parameters in them, which may hold the user's secrets."""
    engine = open_database(postgres.new_database())
    insert = "INSERT INTO meta (name, value) VALUES (%s, %s)"
    with engine.begin() as conn:
        conn.exec_driver_sql(insert, ("hunter2", ""))
    for statement, parameters, text in (
        ("SELECT %s::json", ('{"a": "hunter2", ]',), "invalid input syntax for type json"),
        (insert, ("hunter2", ""), "duplicate key value violates unique constraint"),
    ):
        error = _error_of(engine, statement, parameters)
        assert text in str(error)
        assert text in str(error.orig)
        assert "hunter2" not in "".join(traceback.format_exception(error))
    engine.dispose()


def _error_of(engine: Engine, statement: str, parameters: tuple[str, ...]) -> DBAPIError:
    with pytest.raises(DBAPIError) as caught, engine.begin() as conn:
        conn.exec_driver_sql(statement, parameters)
    return caught.value


OPEN_ON_FULL_DISK = """
import resource, sys
from perdure.controller.store.engine.database import CannotOpen, open_database
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
try:
    open_database(sys.argv[1])
except CannotOpen as error:
    print(error)
"""


def test_open_database__failed_write_is_no_reason_to_move_the_file(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'perdure.db'}"
    text = run_python(OPEN_ON_FULL_DISK, url)
    assert "disk" in text
    assert f"{tmp_path} has " in text
    assert "of free space" in text
    assert "move it away" not in text
    open_database(url).dispose()  # the failed migration left nothing behind


def test_open_database__damaged_file_is_restored_or_moved_away(tmp_path: Path) -> None:
    path = tmp_path / "perdure.db"
    path.write_bytes(b"not a database" * 100)
    with pytest.raises(CannotOpen, match="restore it from a backup; without one, move it away"):
        open_database(f"sqlite:///{path}")


def test_open_database__missing_folder_is_no_reason_to_move_the_file(tmp_path: Path) -> None:
    with pytest.raises(CannotOpen, match=r"check that .*missing and the files in it belong to you"):
        open_database(f"sqlite:///{tmp_path / 'missing' / 'perdure.db'}")


MIGRATE_IN_CHILD = """
import sys
from perdure.controller.store.engine.database import migrate_in_child, open_database
older, new = sys.argv[1:]
migrate_in_child(older)
open_database(new).dispose()
print("alembic" in sys.modules)
"""


def test_older_database__is_migrated_without_alembic_in_the_parent(tmp_path: Path) -> None:
    urls = [f"sqlite:///{tmp_path / name}" for name in ("older.db", "new.db")]
    engine = make_engine(urls[0])
    migrate(engine, f"{int(head_revision()) - 1:04}")
    engine.dispose()
    assert run_python(MIGRATE_IN_CHILD, *urls) == "False\n"
    for name in ("older.db", "new.db"):
        revisions = sqlite3.connect(tmp_path / name).execute("SELECT version_num FROM alembic_version").fetchall()
        assert revisions == [(head_revision(),)]


def test_migrate_in_child__leaves_errors_to_the_next_open(tmp_path: Path) -> None:
    path = tmp_path / "perdure.db"
    path.write_bytes(b"not a database" * 100)
    url = f"sqlite:///{path}"
    assert run_python(MIGRATE_IN_CHILD, url, f"sqlite:///{tmp_path / 'new.db'}") == "False\n"
    with pytest.raises(CannotOpen):
        open_database(f"sqlite:///{path}")


def run_python(program: str, *arguments: str) -> str:
    """The output of a Python interpreter that runs `program` and prints no errors."""
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=True)
    assert not done.stderr
    return done.stdout


def test_open_database__full_disk_is_no_reason_to_move_it(tmp_path: Path) -> None:
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(tmp_path)], check=False)
    if mounted.returncode:
        pytest.skip("needs the right to mount a tmpfs")
    try:
        (tmp_path / "ballast").write_bytes(bytes(64 * 1024))
        with pytest.raises(CannotOpen, match="delete other files from its disk") as caught:
            open_database(f"sqlite:///{tmp_path}/perdure.db")
        assert "move it away" not in str(caught.value)
    finally:
        subprocess.run(["umount", "--lazy", str(tmp_path)], check=True)


def test_open_database__waits_for_a_server_with_too_many_clients(postgres: Postgres) -> None:
    url = postgres.new_database()
    postgres.sql("DROP ROLE IF EXISTS limited")
    postgres.sql("CREATE ROLE limited LOGIN CONNECTION LIMIT 1")
    limited = make_url(url).set(username="limited").render_as_string(hide_password=False)
    open_database(url).dispose()
    owner = psycopg.connect(psycopg_url(url), autocommit=True)
    owner.execute("GRANT ALL ON ALL TABLES IN SCHEMA public TO limited")
    other = psycopg.connect(psycopg_url(limited))
    pauses: list[float] = []

    def pause(pause_s: float) -> None:
        pauses.append(pause_s)
        if len(pauses) == 3:
            other.close()
            wait_until(lambda: not backends(), "the end of the other connection")

    def backends() -> list[tuple[object, ...]]:
        return owner.execute("SELECT 1 FROM pg_stat_activity WHERE usename = 'limited'").fetchall()

    engine = open_database(limited, pause=pause)
    assert pauses == [1.0, 2.0, 4.0]
    engine.dispose()
    owner.close()
