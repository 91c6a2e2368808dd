"""`perdure controller migrate`: everything of a controller on SQLite into an empty PostgreSQL, or nothing at all.

One transaction over there: whatever breaks it off leaves that database as it was, and here nothing is changed before it
is committed. What was copied is read back and compared first.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Table, func, insert, inspect, select, text
from sqlalchemy.exc import ArgumentError
from sqlmodel import SQLModel

from perdure.controller import files, rowreader, sharedlogs
from perdure.controller.keyring import AttemptKey, Keyring
from perdure.controller.leases import remember
from perdure.controller.nodelogs import NodeLogs
from perdure.controller.settings import Settings, SettingsError, read_settings
from perdure.controller.store.database import UNAVAILABLE, make_engine, migrate_on, open_database, shown

Say = Callable[[str], None]

_BATCH = 500
_OF_ITS_OWN = {"controller", "connection", "log", "log_chunk", "file", "file_chunk"}
"""Not copied: who runs and who is connected is no longer true, and logs and files are files here."""


class CannotMove(SettingsError):
    """Nothing was moved and nothing changed. The text says why and what to do."""


def move(settings: Settings, to: str, say: Say) -> None:
    """Copy all of `settings.home` into the database `to`, which is empty. No daemon may run on that home.

    Raises CannotMove.
    """
    if not settings.is_alone:
        raise CannotMove(f"{shown(settings.url)} is no SQLite database: this controller was moved already")
    if not Path(settings.url.removeprefix("sqlite:///")).exists():
        raise CannotMove(f"{settings.home} has no database: there is nothing to move; set database.url and start")
    source = open_database(settings.url)
    try:
        target = make_engine(to)
        if target.dialect.name != "postgresql":
            raise CannotMove(f"{shown(to)} is no PostgreSQL; give --to postgresql://user@host/database")
        with source.connect() as here, target.begin() as there:
            _refuse_unless_empty(there, to)
            # Sent in one go, however long it takes.
            there.execute(text("SET LOCAL statement_timeout = 0"))
            there.execute(text("SET LOCAL idle_in_transaction_session_timeout = 0"))
            migrate_on(there)
            _rows(here, there, say)
            _logs(settings.home, there, say)
            _files(settings.home / "uploads", there, say)
            for name, fingerprint in Keyring.of(settings.keyring).fingerprints().items():
                remember(there, f"keyring.{name}", fingerprint)
    except (*UNAVAILABLE, ArgumentError) as error:
        said = str(getattr(error, "orig", None) or error).strip()
        raise CannotMove(f"moving to {shown(to)}: {said}; nothing was changed: mend it, and do it again") from error
    finally:
        source.dispose()


def set_url(settings: Settings, url: str) -> bool:
    """Name the database in config.yaml. False if that file says something of a database, or can not be added to."""
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
            found = read_settings(trial, {})
        except SettingsError:
            return False
        if replace(found, home=settings.home).database_url != url or settings.database_url:
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
        some = ", ".join(sorted(tables)[:3])
        raise CannotMove(f"{shown(to)} is not empty: it has the tables {some} …; give a new database (createdb)")


def _rows(here: Connection, there: Connection, say: Say) -> None:
    for table in SQLModel.metadata.sorted_tables:
        if table.name in _OF_ITS_OWN:
            continue
        batch: list[dict[str, Any]] = []
        for row in here.execute(select(table)).mappings():
            batch.append(dict(row))
            if len(batch) == _BATCH:
                there.execute(insert(table), batch)
                batch = []
        if batch:
            there.execute(insert(table), batch)
        _go_on_counting(there, table)
        ours, theirs = _digest(here, table), _digest(there, table)
        if ours != theirs:
            raise CannotMove(f"table {table.name}: {theirs[0]} rows arrived of {ours[0]}, or are not the same")
        say(f"{table.name}: {ours[0]} rows, the same in both")


def _go_on_counting(there: Connection, table: Table) -> None:
    """An id that was given is never given again."""
    if "id" in table.c and table.c.id.autoincrement and table.c.id.type.python_type is int:
        highest = there.execute(select(func.max(table.c.id))).scalar()
        if highest is not None:
            sequence = text("SELECT setval(pg_get_serial_sequence(:name, 'id'), :highest)")
            there.execute(sequence, {"name": f'"{table.name}"', "highest": highest})


def _digest(conn: Connection, table: Table) -> tuple[int, str]:
    """How many rows, and a digest of all that is in them, whatever their order."""
    hashes = []
    for row in conn.execute(select(table)).mappings():
        plain = json.dumps(dict(row), sort_keys=True, default=lambda value: bytes(value).hex())
        hashes.append(hashlib.sha256(plain.encode()).digest())
    return len(hashes), hashlib.sha256(b"".join(sorted(hashes))).hexdigest()


def _logs(home: Path, there: Connection, say: Say) -> None:
    logs, count, size = NodeLogs(home), 0, 0
    for key in _logged(home):
        logs.repair(key)
        number = 0
        sent: dict[int, Any] = defaultdict(hashlib.sha256)
        for chunk in logs.reader(key).new():
            data = logs.read(key, chunk)
            for at in range(0, len(data), rowreader.CHUNK_BYTES):
                piece = data[at : at + rowreader.CHUNK_BYTES]
                sharedlogs.add(there, key, number=number, rank=chunk.rank, start=chunk.offset + at, data=piece)
                number += 1
            sent[chunk.rank].update(data)
            size += len(data)
        sharedlogs.set_count(there, key, number)
        for rank, digest in sent.items():
            if sharedlogs.digest_of(there, key, rank) != digest.hexdigest():
                where = f"job {key[0]}, attempt {key[2]}, node {rank}"
                raise CannotMove(f"the log of {where} did not arrive as it was sent")
        count += 1
    say(f"logs: {count} attempts, {size} bytes, the same in both")


def _logged(home: Path) -> Iterator[AttemptKey]:
    for index in sorted(home.glob("logs/*/*/*/index")):
        job, task, generation = index.parts[-4:-1]
        if job.isdecimal() and task.isdecimal() and generation.isdecimal():
            yield int(job), int(task), int(generation)


def _files(folder: Path, there: Connection, say: Say) -> None:
    count = 0
    for path in sorted(folder.glob("[0-9a-f]" * 64)):
        files.store(there, path.name, path, path.stat().st_mtime, uploaded=True)
        if files.digest_of(there, path.name) != path.name:
            raise CannotMove(f"the upload {path} is not what its name says: remove it if no job needs it any more")
        count += 1
    say(f"uploads: {count} files, the same in both")
