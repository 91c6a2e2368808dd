"""`perdure controller backup`: writes a backup of a home, also while its controller runs."""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import IO

from sqlalchemy import select
from sqlalchemy.exc import DatabaseError

from perdure.controller.buckets.stores import StorageError
from perdure.controller.peers.home.backup.archive import DATABASE, KEYS, ArchiveWriter, BackupError, Manifest
from perdure.controller.peers.home.backup.destinations import SUFFIX, destination
from perdure.controller.peers.home.record import FILE
from perdure.controller.runtime.config.settings import Settings
from perdure.controller.runtime.security.keyring import KEY_FILE, TOKEN_FILE
from perdure.controller.store.engine.database import make_engine
from perdure.controller.store.engine.database_url import redacted
from perdure.controller.store.records import facts, incarnations
from perdure.controller.store.records.jobs import Attempt, Job, Task
from perdure.controller.submit.compiler import upload_digests
from perdure.sdk.spec import buckets

_SCRATCH = ".backup"


def back_up(settings: Settings, to: str, report: Callable[[str], None], *, keys: bool = True, keep: int = 0) -> str:
    """Write a backup to a path or a URL. Returns where it is. Raises BackupError, and OSError of this computer's disk.

    `keys`: with secret.key, the token and the certificate, without which a restored controller cannot use stored
    secrets or talk to its machines. `keep`: how many backups of this installation to keep there; 0 keeps all.
    """
    if not settings.is_single_controller:
        raise BackupError(
            f"{redacted(settings.database_address)} is a PostgreSQL database, which has tools of its own: back it up "
            f"with pg_dump, and copy {KEY_FILE} and {TOKEN_FILE} from {settings.keyring_directory}"
        )
    source = Path(settings.database_address.removeprefix("sqlite:///"))
    if not source.exists():
        raise BackupError(f"{settings.home} has no database: there is nothing to back up")
    _require_outside_home(settings, to)
    target = destination(settings, to)
    with _scratch_folder(settings.home) as folder:
        copy, created_at = folder / DATABASE, time.time()  # noqa: TID251 - not the daemon's process
        _copy_database(source, copy)
        content = _Content(settings, copy, keys=keys)
        manifests: list[Manifest] = []
        stamp = datetime.fromtimestamp(created_at, UTC).strftime("%Y%m%dT%H%M%SZ")
        prefix = f"perdure-{content.controller}-"
        write = partial(_write, content, manifests.append, created_at=created_at)
        try:
            where = target.put(f"{prefix}{stamp}{SUFFIX}", write, folder)
            for old in [name for name in target.names() if name.startswith(prefix)][:-keep] if keep else ():
                target.remove(old)
        except StorageError as error:
            raise BackupError(str(error)) from error
    size = sum(size for size, _ in manifests[-1].files.values())
    report(f"{where}: {len(manifests[-1].files)} files, {size / 1e6:.1f} MB before compression")
    if keys:
        report(f"it contains {KEY_FILE}, {TOKEN_FILE} and users' secrets: keep it where only you can read it")
    else:
        report(f"it does not contain {KEY_FILE} and {TOKEN_FILE}: a restore needs both, so keep copies of them")
    return where


def _require_outside_home(settings: Settings, to: str) -> None:
    """Raise BackupError for a path in the home, where it could take a name that the controller uses."""
    if buckets.is_uri(to):
        return
    path = Path(to).expanduser().resolve()
    for folder in {settings.home.resolve(), settings.keyring_directory.resolve()}:
        if path.is_relative_to(folder):
            raise BackupError(f"{to}: this is in {folder}, which the backup is to protect; give a path outside of it")


@contextmanager
def _scratch_folder(home: Path) -> Iterator[Path]:
    """A folder for the copy of the database. Removes what a killed backup left. Raises BackupError if another runs."""
    folder = home / _SCRATCH
    folder.mkdir(mode=0o700, exist_ok=True)
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        for left in folder.iterdir():
            left.unlink()
        yield folder
        for file in folder.iterdir():
            file.unlink()
    except BlockingIOError as error:
        raise BackupError(f"another backup of {home} is being made; wait for it") from error
    finally:
        os.close(lock)


class _Content:
    """What belongs into the backup, beside the copy of the database."""

    def __init__(self, settings: Settings, database: Path, *, keys: bool) -> None:
        self._settings = settings
        self.database = database
        self.keys = keys
        engine = make_engine(f"sqlite:///{database}")
        try:
            with engine.connect() as conn:
                self.controller = facts.get(conn, "controller") or "new"
                self.highest_job = incarnations.highest_job_id(conn)
                key = (Attempt.c.job_id, Attempt.c.task_index, Attempt.c.generation)
                self._attempts = [tuple(row) for row in conn.execute(select(*key).order_by(*key))]
                unfinished = select(Task.c.spec).join(Job, Job.c.id == Task.c.job_id).where(Job.c.finalized.is_(False))
                specs = conn.execute(unfinished).scalars()
                self._uploads = sorted({digest for spec in specs for digest in upload_digests(spec)})
        except DatabaseError as error:
            raise BackupError(f"the database cannot be read: {error.orig}; is it from another version?") from error
        finally:
            engine.dispose()

    def files(self) -> Iterator[tuple[str, Path]]:
        """(name in the backup, file). Some may not exist."""
        home = self._settings.home
        yield DATABASE, self.database
        yield FILE, home / FILE
        yield "config.yaml", home / "config.yaml"
        if self.keys:
            for name in (KEY_FILE, TOKEN_FILE):
                yield f"{KEYS}/{name}", self._settings.keyring_directory / name
            yield from _below(home / "tls", "tls", ("*",))
        for digest in self._uploads:
            yield f"uploads/{digest}", home / "uploads" / digest
        for job, task, generation in self._attempts:
            name = f"logs/{job}/{task}/{generation}"
            # First the index: a log that grows meanwhile has all that the index lists.
            yield from _below(home / name, name, ("index", "*.log"))


def _below(folder: Path, name: str, patterns: Iterable[str]) -> Iterator[tuple[str, Path]]:
    for pattern in patterns:
        for path in sorted(folder.glob(pattern)):
            if path.is_file() and not path.is_symlink():
                yield f"{name}/{path.name}", path


def _write(content: _Content, done: Callable[[Manifest], None], stream: IO[bytes], *, created_at: float) -> None:
    archive = ArchiveWriter(stream)
    for name, path in content.files():
        archive.add(name, path)
    done(
        archive.close(
            created_at=created_at,
            version=version("perdure"),
            controller=content.controller,
            highest_job=content.highest_job,
            has_keys=content.keys,
        )
    )


def _copy_database(source: Path, target: Path) -> None:
    """Copy it consistently while others write, by SQLite's online backup, and check the copy. Raises BackupError."""
    os.close(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    try:
        with closing(sqlite3.connect(source, timeout=30)) as here, closing(sqlite3.connect(target)) as there:
            # In one step: a reader holds up no writer (WAL), and a copy in several steps begins again with each write.
            here.backup(there)
            there.execute("PRAGMA journal_mode=DELETE")  # one file
            problems = [row[0] for row in there.execute("PRAGMA quick_check(3)")]
    except sqlite3.Error as error:
        raise BackupError(f"the database {source} cannot be copied: {error}; nothing was written") from error
    if problems != ["ok"]:
        raise BackupError(f"the database {source} is damaged: {'; '.join(problems)}; nothing was written")
