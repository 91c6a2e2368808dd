"""The migrations make exactly the schema that the code declares; connections that died are replaced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlmodel import SQLModel

from perdure.controller.store import database
from perdure.controller.store.database import head, make_engine, open_database, revision_of


def test_migrations_and_tables_agree(tmp_path: Path) -> None:
    engine = open_database(f"sqlite:///{tmp_path / 'a.db'}")
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), SQLModel.metadata) == []
    assert revision_of(engine) == head()


def test_opening_again_changes_nothing(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'a.db'}"
    open_database(url).dispose()
    engine = open_database(url)
    with engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"


def test_a_connection_that_died_while_it_was_idle_is_replaced(postgres: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was in use a moment ago is not asked whether it lives: that would be a round trip each time."""
    engine = make_engine(postgres.new_database())
    asked: list[object] = []
    ping = engine.dialect.do_ping
    monkeypatch.setattr(engine.dialect, "do_ping", lambda one: asked.append(one) or ping(one))

    def served_by() -> int:
        with engine.connect() as conn:
            return int(conn.exec_driver_sql("SELECT pg_backend_pid()").scalar_one())

    first = served_by()
    assert served_by() == first
    assert not asked
    monkeypatch.setattr(database, "_IDLE_S", 0.0)
    assert served_by() == first
    assert len(asked) == 1
    postgres.sql(f"SELECT pg_terminate_backend({first})")
    assert served_by() != first
    engine.dispose()
