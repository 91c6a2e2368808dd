"""Databases, and the world of one controller, for each test."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import Engine
from sqlmodel import SQLModel

from perdure.controller.store.engine.database import open_database
from support.helpers.held_calls import HeldCalls
from support.helpers.postgres_server import Postgres
from unit.controller.world import World


@pytest.fixture(scope="session")
def migrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A new SQLite database. A copy of it saves a test half a second of migrations."""
    path = tmp_path_factory.mktemp("migrated") / "new.db"
    open_database(f"sqlite:///{path}").dispose()
    return path


@pytest.fixture(scope="session")
def migrated_postgres(postgres: Postgres) -> str:
    """The URL of a migrated PostgreSQL database. It is emptied for each test, which is quicker than a copy."""
    url = postgres.new_database()
    open_database(url).dispose()
    return url


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a new, migrated database: SQLite and PostgreSQL."""
    if request.param == "sqlite":
        shutil.copyfile(request.getfixturevalue("migrated"), tmp_path / "test.db")
        return f"sqlite:///{tmp_path / 'test.db'}"
    url = str(request.getfixturevalue("migrated_postgres"))
    _empty(url)
    return url


def _empty(url: str) -> None:
    """Delete all rows and restart all sequences. TRUNCATE takes fifty times as long: it makes a new file of each table
    and of each of its indexes."""
    with psycopg.connect(url) as conn:
        sequences = conn.execute("SELECT format('%I.%I', schemaname, sequencename) FROM pg_sequences").fetchall()
        deletions = [f'DELETE FROM "{name}"' for name in SQLModel.metadata.tables]
        restarts = [f"SELECT setval('{name}', 1, false)" for (name,) in sequences]
        # As a replica, PostgreSQL checks no foreign keys, so that the order of the tables does not matter.
        conn.execute("; ".join(["SET session_replication_role = replica", *deletions, *restarts]))


@pytest.fixture
def database(database_url: str) -> Iterator[Engine]:
    """A new, migrated database: SQLite and PostgreSQL."""
    engine = open_database(database_url)
    yield engine
    engine.dispose()


@pytest.fixture
def held_calls(world: World) -> HeldCalls:
    """Holds back the calls of the world's controller."""
    held_calls = HeldCalls(world)
    world.dispatcher.calls = held_calls
    return held_calls


@pytest.fixture
def world(database_url: str) -> Iterator[World]:
    world = World(database_url)
    yield world
    world.database.dispose()
