"""Migrations: the schema they create, and the databases that a controller accepts."""

from __future__ import annotations

import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from scripts import schema
from sqlalchemy import Engine, Index, MetaData, inspect, text
from sqlmodel import SQLModel

from perdure.controller.store import tables
from perdure.controller.store.access.tables import AUDIT_TRIGGERS
from perdure.controller.store.engine import database
from perdure.controller.store.engine.database import CannotOpen, head_revision, make_engine, open_database
from support.helpers.postgres_server import Postgres

assert tables.Meta.metadata is SQLModel.metadata

# The options of indexes that only the migrations declare: in `tables`, they would load PostgreSQL's dialect into every
# daemon.
POSTGRESQL_INDEX_OPTIONS: dict[str, dict[str, Any]] = {
    "ix_job_unfinalized": {"where": text("finalized IS false")},
    "ix_attempt_live": {"where": text("state != 'GONE'")},
    "ix_notification_pending": {"where": text("done_at IS NULL")},
    "ix_job_cluster": {"where": text("cluster_id IS NOT NULL")},
    "ix_job_sweep": {"where": text("sweep_id IS NOT NULL")},
    "ix_job_service": {"where": text("service_id IS NOT NULL")},
    "ix_job_cluster_unfinalized": {"where": text("cluster_id IS NOT NULL AND finalized IS false")},
    "ix_cluster_slot_held": {"where": text("ended_at IS NULL")},
    "ix_job_name_id": {"ops": {"name": "text_pattern_ops"}},
}

# Everything that belongs to a schema, as rows that do not depend on the order of the statements that created it.
SQLITE_CATALOG = {
    "columns": """
        SELECT m.name, c.cid, c.name, c.type, c."notnull", c.dflt_value, c.pk, c.hidden
        FROM sqlite_master m, pragma_table_xinfo(m.name) c WHERE m.type = 'table'
    """,
    "indexes": """
        SELECT m.name, i.origin, i."unique", i.partial, group_concat(x.name || ' ' || x."desc" || ' ' || x.coll), d.sql
        FROM sqlite_master m, pragma_index_list(m.name) i, pragma_index_xinfo(i.name) x
        LEFT JOIN sqlite_master d ON d.type = 'index' AND d.name = i.name
        WHERE m.type = 'table' AND x.key GROUP BY m.name, i.name
    """,
    "foreign keys": """
        SELECT m.name, f."table", f."from", f."to", f.on_update, f.on_delete
        FROM sqlite_master m, pragma_foreign_key_list(m.name) f WHERE m.type = 'table'
    """,
    "options": """
        SELECT name, sql LIKE '%AUTOINCREMENT%', sql LIKE '%CHECK%', sql LIKE '%COLLATE%', sql LIKE '%STRICT%'
        FROM sqlite_master WHERE type = 'table'
    """,
    "others": "SELECT type, name, sql FROM sqlite_master WHERE type NOT IN ('table', 'index')",
}
POSTGRESQL_CATALOG = {
    "columns": """
        SELECT c.relname, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod), a.attnotnull,
            pg_get_expr(d.adbin, d.adrelid), a.attidentity, a.attgenerated, coll.collname
        FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid AND c.relkind = 'r'
        LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
        LEFT JOIN pg_collation coll ON coll.oid = a.attcollation
        WHERE c.relnamespace = 'public'::regnamespace AND a.attnum > 0
    """,
    "constraints": """
        SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid)
        FROM pg_constraint WHERE connamespace = 'public'::regnamespace
    """,
    "indexes": "SELECT indexname, indexdef FROM pg_indexes WHERE schemaname = 'public'",
    "sequences": """
        SELECT sequencename, data_type::text, start_value, min_value, max_value, increment_by, cycle
        FROM pg_sequences WHERE schemaname = 'public'
    """,
    "triggers": "SELECT tgrelid::regclass::text, tgname, pg_get_triggerdef(oid) FROM pg_trigger WHERE NOT tgisinternal",
    "functions": "SELECT proname, prosrc FROM pg_proc WHERE pronamespace = 'public'::regnamespace",
    "views": "SELECT viewname, definition FROM pg_views WHERE schemaname = 'public'",
}


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'a.db'}"
    return str(request.getfixturevalue("postgres").new_database())


@pytest.fixture
def other_empty_url(empty_url: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if empty_url.startswith("sqlite"):
        return f"sqlite:///{tmp_path / 'b.db'}"
    return str(request.getfixturevalue("postgres").new_database())


def execute(engine: Engine, statement: str, **values: Any) -> Any:
    with engine.begin() as conn:
        result = conn.execute(text(statement), values)
        return result.scalar() if result.returns_rows else None


def schema_of(engine: Engine) -> dict[str, list[tuple[Any, ...]]]:
    """All definitions in a database, except the table of Alembic."""
    queries = SQLITE_CATALOG if engine.dialect.name == "sqlite" else POSTGRESQL_CATALOG
    with engine.connect() as conn:
        catalog = {name: [tuple(row) for row in conn.execute(text(query))] for name, query in queries.items()}
    return {
        name: sorted((row for row in rows if "alembic_version" not in str(row)), key=str)
        for name, rows in catalog.items()
    }


def declared_tables(dialect: str) -> MetaData:
    """The tables of the code, with the options of indexes that only the migrations declare."""
    declared = MetaData()
    for table in SQLModel.metadata.sorted_tables:
        table.to_metadata(declared)
    indexes: dict[str, Index] = {str(index.name): index for t in declared.sorted_tables for index in t.indexes}
    if dialect == "postgresql":
        for name, options in POSTGRESQL_INDEX_OPTIONS.items():
            indexes[name].dialect_options["postgresql"].update(options)
    return declared


def test_migrations__create_exactly_the_declared_schema(empty_url: str, other_empty_url: str) -> None:
    migrated, declared = make_engine(empty_url), make_engine(other_empty_url)
    database.migrate(migrated, head_revision())
    declared_tables(declared.dialect.name).create_all(declared)
    for statement in AUDIT_TRIGGERS[declared.dialect.name]:
        execute(declared, statement)
    assert schema_of(migrated) == schema_of(declared)
    migrated.dispose()
    declared.dispose()


def test_schema_file__is_what_all_migrations_make_in_their_order() -> None:
    assert schema.TARGET.read_text() == schema.schema(), "run: python -m scripts.schema"


def test_new_sqlite_file__is_what_all_migrations_make(tmp_path: Path) -> None:
    migrated, created = make_engine(f"sqlite:///{tmp_path / 'a.db'}"), open_database(f"sqlite:///{tmp_path / 'b.db'}")
    database.migrate(migrated, head_revision())
    assert schema_of(created) == schema_of(migrated)
    assert rows_of(created) == rows_of(migrated) == [f"INSERT INTO \"alembic_version\" VALUES('{head_revision()}');"]
    definition = "SELECT c.name, c.type, c.\"notnull\", c.pk FROM pragma_table_info('alembic_version') c"
    assert execute(created, definition) == execute(migrated, definition)
    database.migrate(created, head_revision())  # Alembic takes it for its own
    migrated.dispose()
    created.dispose()


def rows_of(engine: Engine) -> list[str]:
    """The statements that insert all rows of a SQLite database."""
    with closing(sqlite3.connect(str(engine.url.database))) as conn:
        return [line for line in conn.iterdump() if line.startswith("INSERT") and "sqlite_sequence" not in line]


def test_task__measured_times_have_a_default_in_the_database(empty_url: str) -> None:
    engine = open_database(empty_url)
    with engine.connect() as conn:
        columns = {column["name"]: column for column in inspect(conn).get_columns("task")}
    assert ["0" in str(columns[name]["default"]) for name in ("resumed_s", "first_step_s")] == [True, True]
    engine.dispose()


def test_open_database__migrates_an_empty_database_to_head(empty_url: str) -> None:
    engine = make_engine(empty_url)
    assert database.revision_of(engine) is None
    open_database(empty_url).dispose()
    assert database.revision_of(engine) == head_revision()
    execute(engine, "INSERT INTO meta (name, value) VALUES ('controller', 'abc')")
    open_database(empty_url).dispose()
    assert execute(engine, "SELECT value FROM meta") == "abc", "a database at head is opened unchanged"
    engine.dispose()


def test_open_database__accepts_the_next_revision_and_rejects_later_ones(empty_url: str) -> None:
    engine = open_database(empty_url)
    newer = f"{int(head_revision()) + 1:04}"
    execute(engine, "UPDATE alembic_version SET version_num = :newer", newer=newer)
    open_database(empty_url).dispose()
    assert database.revision_of(engine) == newer
    execute(engine, "UPDATE alembic_version SET version_num = :newest", newest=f"{int(head_revision()) + 2:04}")
    with pytest.raises(CannotOpen, match="install a newer version"):
        open_database(empty_url)
    engine.dispose()


def test_open_database__concurrent_starts_migrate_once(postgres: Postgres) -> None:
    url = postgres.new_database()
    with ThreadPoolExecutor(4) as pool:
        for engine in pool.map(open_database, [url] * 4):
            assert database.revision_of(engine) == head_revision()
            assert execute(engine, "SELECT count(*) FROM alembic_version") == 1
            engine.dispose()


def test_open_database__does_not_migrate_two_revisions_past_a_running_controller(
    postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres.new_database()
    engine = open_database(url)
    columns = "id, started_at, lease_until, endpoint, schema_revision"
    execute(
        engine, f"INSERT INTO controller ({columns}) VALUES ('c', 0, 1e12, '', :revision)", revision=head_revision()
    )
    monkeypatch.setattr(database, "head_revision", lambda: "9999")
    with pytest.raises(CannotOpen, match=f"a running controller supports revision {head_revision()}"):
        open_database(url)
    assert database.revision_of(engine) == head_revision()
    engine.dispose()
