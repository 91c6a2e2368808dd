"""There and back: every revision can be reached from every other with what it can keep, on both databases."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Engine, text
from sqlmodel import SQLModel

from perdure.controller.store import database
from perdure.controller.store.database import CannotOpen, head, make_engine, migrate, migrate_back, open_database


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'a.db'}"
    return str(request.getfixturevalue("postgres").new_database())


def say(engine: Engine, statement: str, **values: Any) -> Any:
    with engine.begin() as conn:
        done = conn.execute(text(statement), values)
        return done.scalar() if done.returns_rows else None


def test_the_schema_is_that_of_the_code(empty_url: str) -> None:
    engine = open_database(empty_url)
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), SQLModel.metadata) == []
    engine.dispose()


def test_there_and_back_keeps_what_is_there(empty_url: str) -> None:
    engine = make_engine(empty_url)
    migrate(engine, "0001")
    columns = 'id, name, "user", priority, num_tasks, submitted_at, batch_rank, batch_size, epoch, settled'
    say(engine, f"INSERT INTO job ({columns}) VALUES (1, 'mine', 'me', 3, 1, 12.5, 0, 1, 4, :no)", no=False)
    say(engine, "INSERT INTO controller (id, started_at, lease_until, endpoint) VALUES ('c', 1.0, 2.0, 'e')")
    for revision in (head(), "0001", head()):
        if revision == head():
            migrate(engine)
        else:
            migrate_back(engine, revision)
        assert database.revision_of(engine) == revision
        assert say(engine, "SELECT name FROM job WHERE id = 1 AND epoch = 4 AND submitted_at = 12.5") == "mine"
        assert say(engine, "SELECT endpoint FROM controller WHERE id = 'c'") == "e"
    # What only knows 0001 goes on writing as it did.
    say(engine, "INSERT INTO controller (id, started_at, lease_until, endpoint) VALUES ('d', 1.0, 2.0, 'e')")
    engine.dispose()
    open_database(empty_url).dispose()


def test_one_revision_newer_is_used_as_it_is_and_two_are_refused(empty_url: str) -> None:
    engine = open_database(empty_url)
    newer = f"{int(head()) + 1:04}"
    say(engine, "UPDATE alembic_version SET version_num = :newer", newer=newer)
    open_database(empty_url).dispose()
    assert database.revision_of(engine) == newer
    say(engine, "UPDATE alembic_version SET version_num = :newest", newest=f"{int(head()) + 2:04}")
    with pytest.raises(CannotOpen, match="install a newer version"):
        open_database(empty_url)
    engine.dispose()


def test_many_at_once_on_an_empty_database(postgres: Any) -> None:
    url = postgres.new_database()
    with ThreadPoolExecutor(4) as pool:
        for engine in pool.map(open_database, [url] * 4):
            assert database.revision_of(engine) == head()
            engine.dispose()


def test_nobody_is_left_behind(postgres: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A controller that runs can use a schema one revision newer than it knows, so that is how far one goes."""
    url = postgres.new_database()
    engine = open_database(url)
    row = "INSERT INTO controller (id, started_at, lease_until, endpoint, knows) VALUES ('c', 0, 1e12, '', :knows)"
    say(engine, row, knows=head())
    monkeypatch.setattr(database, "head", lambda: "9999")
    with pytest.raises(CannotOpen, match=f"knows its revision {head()} alone"):
        open_database(url)
    engine.dispose()


@pytest.mark.parametrize("url", ["postgresql://nobody@127.0.0.1:1/none", "mysql://a/b", "nonsense"])
def test_a_database_that_can_not_be_had_is_named(url: str) -> None:
    with pytest.raises(CannotOpen, match=url[:20].replace("+", ".")):
        open_database(url)


def test_no_password_is_shown() -> None:
    with pytest.raises(CannotOpen) as caught:
        open_database("postgresql://me:sesame@127.0.0.1:1/none")
    assert "sesame" not in str(caught.value)
    assert "me:***@127.0.0.1" in str(caught.value)
