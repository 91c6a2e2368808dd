"""Where backups are kept: in a file, in a folder, or in a bucket, which rclone reads and writes."""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import IO, Protocol

from perdure.agent.storage.rclone import Remote
from perdure.controller.buckets.configured import configured_stores
from perdure.controller.buckets.stores import Access, StorageError
from perdure.controller.clouds.bootstrap.artifacts import find_rclone
from perdure.controller.peers.home.backup.archive import BackupError, is_backup
from perdure.controller.runtime.config.settings import Settings
from perdure.controller.runtime.failpoints import failpoint
from perdure.sdk.connection.installation import install_command
from perdure.sdk.spec import buckets
from perdure.sdk.spec.problems import InvalidValue

SUFFIX = ".perdure-backup"
Write = Callable[[IO[bytes]], None]


class Destination(Protocol):
    """A place for backups."""

    def put(self, name: str, write: Write, scratch: Path) -> str:
        """Write a backup, atomically: it is there as a whole, or not at all. Returns where it is.

        `scratch`: a folder on this computer for temporary files. Raises BackupError if anything but a backup is in the
        way.
        """
        ...

    def names(self) -> list[str]:
        """The names of the backups there."""
        ...

    def remove(self, name: str) -> None: ...

    def fetch(self, scratch: Path) -> Path:
        """The backup that this destination names, in a file on this computer. Raises BackupError."""
        ...


def destination(settings: Settings, where: str) -> Destination:
    """The destination that a path or a URL names. Raises BackupError."""
    if buckets.is_uri(where):
        try:
            return _bucket(settings, where)
        except StorageError as error:
            raise BackupError(str(error)) from error
    path = Path(where).expanduser()
    return FolderDestination(path) if where.endswith("/") or path.is_dir() else FileDestination(path)


class FileDestination:
    """One file, which the next backup replaces."""

    def __init__(self, path: Path) -> None:
        self._path = path.absolute()

    def put(self, name: str, write: Write, scratch: Path) -> str:  # noqa: ARG002 - the user gave the name
        _put_file(self._path, write)
        return str(self._path)

    def names(self) -> list[str]:
        return [self._path.name] if self._path.exists() else []

    def remove(self, name: str) -> None:
        self._path.with_name(name).unlink(missing_ok=True)

    def fetch(self, scratch: Path) -> Path:  # noqa: ARG002
        if not self._path.is_file():
            raise BackupError(f"{self._path}: there is no such file")
        return self._path


class FolderDestination:
    """A folder with one file per backup."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder.absolute()

    def put(self, name: str, write: Write, scratch: Path) -> str:  # noqa: ARG002 - the rename needs the same disk
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _put_file(self._folder / name, write)
        return str(self._folder / name)

    def names(self) -> list[str]:
        return sorted(path.name for path in self._folder.glob(f"perdure-*{SUFFIX}"))

    def remove(self, name: str) -> None:
        (self._folder / name).unlink(missing_ok=True)

    def fetch(self, scratch: Path) -> Path:  # noqa: ARG002
        if not (names := self.names()):
            raise BackupError(f"{self._folder}: there is no backup in this folder (perdure-*{SUFFIX})")
        return self._folder / names[-1]


class BucketDestination:
    """A folder of a bucket. `prefix` may also name one backup, to fetch it."""

    def __init__(self, url: str, remote: Remote, rclone: Path) -> None:
        self._url = url.rstrip("/")
        self._remote = remote
        self._rclone = rclone

    def put(self, name: str, write: Write, scratch: Path) -> str:
        _put_file(scratch / name, write)  # an upload needs to know its size
        self._run("copyto", str(scratch / name), f"{self._remote.url}/{name}")
        return f"{self._url}/{name}"

    def names(self) -> list[str]:
        listed = self._run("lsf", "--files-only", self._remote.url).splitlines()
        return sorted(name for name in listed if name.startswith("perdure-") and name.endswith(SUFFIX))

    def remove(self, name: str) -> None:
        self._run("deletefile", f"{self._remote.url}/{name}")

    def fetch(self, scratch: Path) -> Path:
        url = self._remote.url
        if not url.endswith(SUFFIX):
            if not (names := self.names()):
                raise BackupError(f"{self._url}: there is no backup (perdure-*{SUFFIX})")
            url = f"{url}/{names[-1]}"
        target = scratch / "fetched"
        self._run("copyto", url, str(target))
        if not target.is_file():
            raise BackupError(f"{self._url}: there is no such backup")
        return target

    def _run(self, *words: str) -> str:
        command = [str(self._rclone), *words, "--retries", "3", "--contimeout", "10s"]
        done = subprocess.run(command, env=self._remote.environ(), capture_output=True, text=True, check=False)
        if done.returncode != 0:
            last = (done.stderr.strip().splitlines() or ["rclone failed"])[-1]
            raise BackupError(f"{self._url}: {last}; check the bucket's name, and the credentials of this computer")
        return done.stdout


def _bucket(settings: Settings, url: str) -> BucketDestination:
    try:
        uri = buckets.parse(url)
    except InvalidValue as error:
        raise BackupError(str(error)) from error
    root = str(settings.local_home / "local" / "buckets") if settings.local_home else None
    stores = configured_stores(settings, buckets_on_node=root)
    if (store := stores.get(uri.store.lower())) is None:
        raise BackupError(f"{url}: this controller has no store {uri.store}; it has: {', '.join(stores)}")
    if (rclone := find_rclone()) is None:
        raise BackupError(f"rclone is not installed: {install_command('controller')}, or give a path instead of a URL")
    bucket = f"{uri.account}/{uri.bucket}" if uri.account else uri.bucket
    if not store.exists(bucket):
        raise BackupError(f"{url}: there is no bucket {bucket}; create it first, where only you can read it")
    spec = {
        "rclone": store.rclone_remote(bucket, Access(is_controller=True)),
        "bucket": uri.bucket,
        "prefix": uri.prefix,
    }
    return BucketDestination(url, Remote.from_spec(spec), rclone)


def _put_file(path: Path, write: Write) -> None:
    """Write the file under a temporary name, which the next backup uses again, then rename it. Raises BackupError."""
    _require_replaceable(path)
    temporary = path.with_name(f".{path.name.partition('-20')[0]}.partial")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with open(os.open(temporary, flags, 0o600), "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        failpoint("backup.writing")
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync(path.parent)
    failpoint("backup.written")


def _require_replaceable(path: Path) -> None:
    """Raise BackupError unless `path` is free, or a backup, which a new one may replace."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        raise BackupError(f"{path}: this is no regular file, and a backup would replace it; give another path")
    if not is_backup(path):
        raise BackupError(
            f"{path}: this file is no backup of Perdure, and a backup would replace it; give another path"
        )


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
