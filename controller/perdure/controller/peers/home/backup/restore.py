"""`perdure controller restore`: makes a home from a backup. May be killed at any time, and run again.

Everything is extracted and verified in `HOME/.restore` first. The last step renames the database into its place: before
it, no controller starts on the home, and a restore may begin again; after it, the restore is done.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from perdure.controller.buckets.stores import StorageError
from perdure.controller.peers.home import database_check
from perdure.controller.peers.home.backup.archive import DATABASE, KEYS, BackupError, Manifest, extract
from perdure.controller.peers.home.backup.destinations import destination
from perdure.controller.peers.home.record import FILE, HomeRecord
from perdure.controller.runtime.config.settings import Settings, read_settings
from perdure.controller.runtime.failpoints import failpoint
from perdure.controller.runtime.process import single_instance_lock
from perdure.controller.runtime.security.keyring import KEY_FILE, TOKEN_FILE
from perdure.controller.store.engine.database import open_database

Report = Callable[[str], None]


def restore(home: Path, source: str, report: Report) -> None:
    """Restore a backup from a path or a URL into `home`. Raises BackupError, which has changed nothing, and OSError."""
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    with single_instance_lock(home):
        staging = home / database_check.RESTORE
        if staging.exists() and (home / DATABASE).exists():
            shutil.rmtree(staging)
            report(f"{home} was restored already; an interrupted restore had only left {staging.name} behind")
            return
        _require_no_database(home)
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(mode=0o700)
        try:
            manifest = _stage(read_settings(home), source, staging)
            settings = read_settings(staging if not (home / "config.yaml").exists() else home)
            _require_same_keys(home, settings, staging, manifest)
        except BaseException:
            shutil.rmtree(staging, ignore_errors=True)
            raise
        _complete(home, staging, report)
        made = datetime.fromtimestamp(manifest.created_at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        report(f"{home} is what it was at {made}, with jobs up to {manifest.highest_job}; lost: what happened later")
        report("start the controller: jobs that it knows are adopted; other machines are named in its status and ended")


def _require_no_database(home: Path) -> None:
    if existing := sorted(path.name for path in home.glob(f"{DATABASE}*")):
        raise BackupError(
            f"{home} has a database ({', '.join(existing)}), which a restore would replace; move it away first, with "
            f"its -wal and -shm: mkdir {home}/old && mv {home}/{DATABASE}* {home}/old"
        )


def _stage(settings: Settings, source: str, staging: Path) -> Manifest:
    fetched = staging / "fetched"
    fetched.mkdir(mode=0o700)
    try:
        path = destination(settings, source).fetch(fetched)
    except StorageError as error:
        raise BackupError(str(error)) from error
    manifest = extract(path, staging)
    if DATABASE not in manifest.files:
        raise BackupError(f"{source}: it has no database; use another backup")
    shutil.rmtree(fetched)
    failpoint("restore.staged")
    return manifest


def _require_same_keys(home: Path, settings: Settings, staging: Path, manifest: Manifest) -> None:
    """A key that exists must be that of the backup; one that is missing must be in it."""
    folder = settings.keyring_directory if settings.keyring_folder else home
    existing, backed_up = folder / KEY_FILE, staging / KEYS / KEY_FILE
    if not existing.exists() and not backed_up.exists():
        raise BackupError(f"the backup was made without keys: put {KEY_FILE} and {TOKEN_FILE} into {folder} first")
    if existing.exists() and backed_up.exists() and existing.read_text().strip() != backed_up.read_text().strip():
        raise BackupError(
            f"{existing} is another key than that of controller {manifest.controller} in the backup; move it away, "
            "or restore into another PERDURE_HOME"
        )


def _complete(home: Path, staging: Path, report: Report) -> None:
    """Move everything into place; the database last."""
    for name in ("config.yaml", "tls"):
        if (staging / name).exists() and not (home / name).exists():
            (staging / name).rename(home / name)
    settings = read_settings(home)
    for name in (KEY_FILE, TOKEN_FILE):
        target = settings.keyring_directory / name
        if (staging / KEYS / name).exists() and not target.exists():
            target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            shutil.move(staging / KEYS / name, target)
    _merge(staging / "uploads", home / "uploads")
    for folder in sorted((staging / "logs").glob("*/*/*")):
        _merge_log(folder, home.joinpath("logs", *folder.parts[-3:]))
    failpoint("restore.moving")
    if (staging / FILE).exists() and HomeRecord.load(home) is None:
        (staging / FILE).rename(home / FILE)
    record = _accept(settings, staging / DATABASE, report)
    record.save(home)
    os.sync()  # thousands of files
    (staging / DATABASE).rename(home / DATABASE)
    _sync(home)
    failpoint("restore.moved")
    shutil.rmtree(staging)


def _accept(settings: Settings, database: Path, report: Report) -> HomeRecord:
    """Begin a new incarnation in the database, and set logs aside that it does not know."""
    engine = open_database(f"sqlite:///{database}")
    try:
        with engine.begin() as conn:
            record = database_check.accept(settings, conn, report)
        with engine.connect() as conn:
            conn.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
    finally:
        engine.dispose()
    for name in ("-wal", "-shm"):
        database.with_name(database.name + name).unlink(missing_ok=True)
    return record


def _merge(source: Path, target: Path) -> None:
    """Move files that `target` does not have."""
    target.mkdir(mode=0o700, exist_ok=True)
    for path in source.glob("*"):
        if not (target / path.name).exists():
            path.rename(target / path.name)


def _merge_log(source: Path, target: Path) -> None:
    """Move the log of an attempt, unless the home has a longer one: a log only grows."""
    if target.exists() and _size(target) >= _size(source):
        return
    shutil.rmtree(target, ignore_errors=True)
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    source.rename(target)


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.glob("*.log"))


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
