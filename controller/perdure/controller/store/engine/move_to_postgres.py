"""`perdure controller migrate`: moves a controller from SQLite to an empty PostgreSQL database.

The target is filled in one transaction, so an interrupted move leaves it empty. The copies are read back and compared
before the commit. The source is not changed.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Engine, Table, func, insert, inspect, select, text
from sqlalchemy.exc import ArgumentError
from sqlmodel import SQLModel

from perdure.controller.runtime.config.config_file import SettingsError
from perdure.controller.runtime.config.settings import Settings, read_settings
from perdure.controller.runtime.keys import AttemptKey
from perdure.controller.runtime.security.keyring import Keyring
from perdure.controller.store import blobs
from perdure.controller.store.engine.database import UNAVAILABLE, make_engine, migrate_on, open_database
from perdure.controller.store.engine.database_url import redacted, without_passwords
from perdure.controller.store.logs import sql_logs, sql_reader
from perdure.controller.store.logs.file_logs import FileLogStore
from perdure.controller.store.records import facts, incarnations

Report = Callable[[str], None]

_BATCH_SIZE = 500
_NOT_COPIED = {"controller", "agent_connection", "log_head", "log_chunk", "blob", "blob_chunk"}
"""Tables that are not copied: no daemon runs and no node is connected, and logs and blobs are files on this side."""


class MigrationRefused(SettingsError):
    """Nothing was moved or changed. The text says why and what to do."""


def check_move(settings: Settings, to: str) -> None:
    """Raise MigrationRefused for what forbids a move, as far as it shows while a daemon runs. Changes nothing."""
    _require_sqlite(settings)
    try:
        target = make_engine(to)
        _require_postgres(target, to)
        with target.connect() as there:
            _refuse_unless_empty(there, to)
    except (*UNAVAILABLE, ArgumentError) as error:
        raise _cannot_move(to, error) from error


def move_home(settings: Settings, to: str, report: Report) -> None:
    """Copy all data of `settings.home` into the empty database `to`. No daemon may run on that home.

    Raises MigrationRefused.
    """
    _require_sqlite(settings)
    source = open_database(settings.database_address)
    try:
        target = make_engine(to)
        _require_postgres(target, to)
        with source.connect() as here, target.begin() as there:
            _refuse_unless_empty(there, to)
            # One transaction copies everything, however long it takes.
            there.execute(text("SET LOCAL statement_timeout = 0"))
            there.execute(text("SET LOCAL idle_in_transaction_session_timeout = 0"))
            migrate_on(there)
            _copy_rows(here, there, report)
            _copy_logs(settings.home, there, report)
            _copy_blobs(settings.home / "uploads", there, report)
            for name, fingerprint in Keyring.load_or_create(settings.keyring_directory).fingerprints().items():
                facts.set(there, f"keyring.{name}", fingerprint)
    except (*UNAVAILABLE, ArgumentError) as error:
        raise _cannot_move(to, error) from error
    finally:
        source.dispose()


def _require_sqlite(settings: Settings) -> None:
    if not settings.is_single_controller:
        raise MigrationRefused(
            f"{redacted(settings.database_address)} is not a SQLite database: this controller was moved already"
        )
    if not Path(settings.database_address.removeprefix("sqlite:///")).exists():
        raise MigrationRefused(f"{settings.home} has no database: there is nothing to move; set database.url and start")


def _require_postgres(target: Engine, to: str) -> None:
    if target.dialect.name != "postgresql":
        raise MigrationRefused(f"{redacted(to)} is not a PostgreSQL URL; use --to postgresql://user@host/database")


def _cannot_move(to: str, error: Exception) -> MigrationRefused:
    reason = without_passwords(str(getattr(error, "orig", None) or error).strip(), to)
    return MigrationRefused(f"moving to {redacted(to)}: {reason}; nothing was changed: fix it and try again")


def set_url(settings: Settings, url: str) -> bool:
    """Add the database to config.yaml. False if the file has a database section, or if it cannot be extended."""
    path = settings.home / "config.yaml"
    before = path.read_text() if path.exists() else ""
    separator = "" if not before or before.endswith("\n") else "\n"
    trial = settings.home / ".migrate"
    trial.mkdir(mode=0o700, exist_ok=True)
    try:
        new = trial / "config.yaml"
        new.touch(mode=0o600)  # the URL may hold a password
        new.write_text(f"{before}{separator}{config_line(url)}\n")
        try:
            new_settings = read_settings(trial, {})
        except SettingsError:
            return False
        if replace(new_settings, home=settings.home).database_url != url or settings.database_url:
            return False
        new.replace(path)
        return True
    finally:
        for left in trial.iterdir():
            left.unlink()
        trial.rmdir()


def config_line(url: str) -> str:
    """The line of config.yaml that names the database."""
    return f"database: {{url: {json.dumps(url)}}}"


def _refuse_unless_empty(there: Connection, to: str) -> None:
    tables = inspect(there).get_table_names()
    if tables:
        names = ", ".join(sorted(tables)[:3])
        raise MigrationRefused(
            f"{redacted(to)} is not empty: it has the tables {names} …; use a new database (createdb)"
        )


def _copy_rows(here: Connection, there: Connection, report: Report) -> None:
    for table in SQLModel.metadata.sorted_tables:
        if table.name in _NOT_COPIED:
            continue
        batch: list[dict[str, Any]] = []
        for row in here.execute(select(table)).mappings():
            batch.append(dict(row))
            if len(batch) == _BATCH_SIZE:
                there.execute(insert(table), batch)
                batch = []
        if batch:
            there.execute(insert(table), batch)
        _bump_sequence(there, table)
        ours, theirs = _digest(here, table), _digest(there, table)
        if ours != theirs:
            raise MigrationRefused(f"table {table.name}: {theirs[0]} of {ours[0]} rows arrived, or they differ")
        report(f"{table.name}: {ours[0]} rows, verified")
    incarnations.skip_job_ids(there, incarnations.highest_job_id(here))  # also those of jobs that were deleted


def _bump_sequence(there: Connection, table: Table) -> None:
    """Continue ids after the copied ones, since an id is never reused."""
    if "id" in table.c and table.c.id.autoincrement and table.c.id.type.python_type is int:
        highest = there.execute(select(func.max(table.c.id))).scalar()
        if highest is not None:
            sequence = text("SELECT setval(pg_get_serial_sequence(:name, 'id'), :highest)")
            there.execute(sequence, {"name": f'"{table.name}"', "highest": highest})


def _digest(conn: Connection, table: Table) -> tuple[int, str]:
    """The number of rows, and a digest of their contents that does not depend on their order."""
    hashes = []
    for row in conn.execute(select(table)).mappings():
        plain = json.dumps(dict(row), sort_keys=True, default=lambda value: bytes(value).hex())
        hashes.append(hashlib.sha256(plain.encode()).digest())
    return len(hashes), hashlib.sha256(b"".join(sorted(hashes))).hexdigest()


def _copy_logs(home: Path, there: Connection, report: Report) -> None:
    logs, count, size = FileLogStore(home), 0, 0
    for key in _logged(home):
        number = 0
        sent: dict[int, Any] = defaultdict(hashlib.sha256)
        for chunk in logs.reader(key).read_new():
            data = logs.read_chunk(key, chunk)
            for at in range(0, len(data), sql_reader.CHUNK_BYTES):
                piece = data[at : at + sql_reader.CHUNK_BYTES]
                sql_logs.insert_chunk(there, key, number=number, rank=chunk.rank, start=chunk.offset + at, data=piece)
                number += 1
            sent[chunk.rank].update(data)
            size += len(data)
        sql_logs.insert_head(there, key, number)
        for rank, digest in sent.items():
            if sql_logs.digest_of(there, key, rank) != digest.hexdigest():
                where = f"job {key[0]}, attempt {key[2]}, node {rank}"
                raise MigrationRefused(f"the log of {where} differs from the original")
        count += 1
    report(f"logs: {count} attempts, {size} bytes, verified")


def _logged(home: Path) -> Iterator[AttemptKey]:
    for index in sorted(home.glob("logs/*/*/*/index")):
        job, task, generation = index.parts[-4:-1]
        if job.isdecimal() and task.isdecimal() and generation.isdecimal():
            yield int(job), int(task), int(generation)


def _copy_blobs(folder: Path, there: Connection, report: Report) -> None:
    count = 0
    for path in sorted(folder.glob("[0-9a-f]" * 64)):
        blobs.insert_blob(there, path.name, path, path.stat().st_mtime, uploaded=True)
        if blobs.stored_digest(there, path.name) != path.name:
            raise MigrationRefused(
                f"the upload {path} does not match its digest: delete it if no job needs it any more"
            )
        count += 1
    report(f"uploads: {count} files, verified")
