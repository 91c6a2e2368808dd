"""Files by their sha256: uploads of users, and files that nodes run. In a directory, or in the database for several
daemons.

A file is written under a temporary name and renamed, so nobody sees an incomplete one.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Protocol

from sqlalchemy import Connection, Engine, delete, insert, select, update

from perdure.controller.runtime.clock import Clock
from perdure.controller.store.engine.database import insert_into
from perdure.controller.store.tables import BlobChunkRow, BlobRow

Blobs = BlobRow.__table__  # type: ignore[attr-defined]
Chunks = BlobChunkRow.__table__  # type: ignore[attr-defined]

CHUNK_BYTES = 2**20
TEMP_PREFIX = ".upload-"
"""The prefix of files that are being written or deleted. A daemon that starts deletes those of a killed one."""
_DIGEST = re.compile("[0-9a-f]{64}")


class BlobStore(Protocol):
    """Files by digest."""

    #: A directory on the disk of the store, for files that are written before `put`.
    folder: Path

    def has(self, digest: str) -> bool: ...

    def path(self, digest: str) -> Path | None:
        """The file on this computer; None if there is no such file. Fetches it from the database if needed."""
        ...

    def artifact_path(self, digest: str) -> Path | None:
        """`path` of a file that nodes run; None for any other file, such as a user's upload."""
        ...

    def put(self, digest: str, written: Path) -> None:
        """Store the upload `written`, whose sha256 is `digest`. Moves the file."""
        ...

    def touch(self, digest: str, now: float) -> bool:
        """Whether the file is stored. Sets its last use to `now`, so that it does not expire before a job uses it."""
        ...

    def expired(self, before: float, limit: int) -> list[str]:
        """Up to `limit` uploads that were last stored or touched before `before`."""
        ...

    def remove(self, digest: str, before: float) -> bool:
        """Delete an upload unless it was stored or touched since `before`. Returns whether it was deleted."""
        ...


class DirectoryBlobs:
    """Files on this computer. The directories `more` hold artifacts, which are served, but not managed."""

    def __init__(self, folder: Path, *more: Path) -> None:
        self.folder = folder
        self._artifact_folders = more
        self._folders = (folder, *more)

    def has(self, digest: str) -> bool:
        return self.path(digest) is not None

    def path(self, digest: str) -> Path | None:
        return next((f / digest for f in self._folders if (f / digest).exists()), None)

    def artifact_path(self, digest: str) -> Path | None:
        return next((f / digest for f in self._artifact_folders if (f / digest).exists()), None)

    def put(self, digest: str, written: Path) -> None:
        os.replace(written, self.folder / digest)

    def touch(self, digest: str, now: float) -> bool:
        path = self.path(digest)
        if path is None:
            return False
        try:
            os.utime(path, (now, now))
        except FileNotFoundError:
            return False
        return True

    def expired(self, before: float, limit: int) -> list[str]:
        files = (entry for entry in os.scandir(self.folder) if _DIGEST.fullmatch(entry.name))
        return list(islice((file.name for file in files if file.stat().st_mtime < before), limit))

    def remove(self, digest: str, before: float) -> bool:
        path, temporary = self.folder / digest, self.folder / f"{TEMP_PREFIX}{digest}"
        try:
            path.rename(temporary)
        except FileNotFoundError:
            return False
        # From here on nobody can touch the file. If somebody did a moment ago, it goes back.
        if temporary.stat().st_mtime >= before:
            temporary.rename(path)
            return False
        temporary.unlink()
        return True


class SqlBlobs:
    """Files in the database, which every daemon serves. `cache` has the copies on this computer."""

    def __init__(self, cache: DirectoryBlobs, database: Engine, clock: Clock) -> None:
        self.folder = cache.folder
        self._cache = cache
        self._database = database
        self._clock = clock

    def has(self, digest: str) -> bool:
        with self._database.connect() as conn:
            return conn.execute(select(Blobs.c.digest).where(Blobs.c.digest == digest)).first() is not None

    def path(self, digest: str) -> Path | None:
        path = self._cache.path(digest)
        if path is None and self.has(digest):
            handle, temporary = tempfile.mkstemp(dir=self.folder, prefix=".fetch-")
            try:
                with os.fdopen(handle, "wb") as file:
                    for data in self._pieces(digest):
                        file.write(data)
                self._cache.put(digest, Path(temporary))
            finally:
                Path(temporary).unlink(missing_ok=True)
            path = self._cache.path(digest)
        return path

    def artifact_path(self, digest: str) -> Path | None:
        path = self._cache.artifact_path(digest)
        if path is None and self._is_published(digest):  # by a daemon of another version
            path = self.path(digest)
        return path

    def _is_published(self, digest: str) -> bool:
        query = select(Blobs.c.digest).where(Blobs.c.digest == digest, Blobs.c.uploaded.is_(False))
        with self._database.connect() as conn:
            return conn.execute(query).first() is not None

    def put(self, digest: str, written: Path) -> None:
        if not self.has(digest):
            with self._database.begin() as conn:
                insert_blob(conn, digest, written, self._clock.now(), uploaded=True)
        self._cache.put(digest, written)

    def publish(self, digest: str, written: Path) -> None:
        """Store a file that nodes run, so that every daemon can serve it. `written` stays where it is."""
        if not self.has(digest):
            with self._database.begin() as conn:
                insert_blob(conn, digest, written, self._clock.now())

    def touch(self, digest: str, now: float) -> bool:
        with self._database.begin() as conn:
            return conn.execute(update(Blobs).where(Blobs.c.digest == digest).values(last_used_at=now)).rowcount == 1

    def expired(self, before: float, limit: int) -> list[str]:
        query = select(Blobs.c.digest).where(Blobs.c.uploaded, Blobs.c.last_used_at < before).limit(limit)
        with self._database.connect() as conn:
            return list(conn.execute(query).scalars())

    def remove(self, digest: str, before: float) -> bool:
        with self._database.begin() as conn:
            expired = (Blobs.c.digest == digest, Blobs.c.uploaded, Blobs.c.last_used_at < before)
            if conn.execute(delete(Blobs).where(*expired)).rowcount == 0:
                return False
            conn.execute(delete(Chunks).where(Chunks.c.digest == digest))
        self._cache.remove(digest, before)
        return True

    def _pieces(self, digest: str) -> Iterator[bytes]:
        """Read one chunk per transaction, since a file takes long. Raises OSError if the file is damaged."""
        number, sha = 0, hashlib.sha256()
        while True:
            with self._database.connect() as conn:
                where = (Chunks.c.digest == digest, Chunks.c.number == number)
                data = conn.execute(select(Chunks.c.data).where(*where)).scalar()
            if data is None:
                break
            sha.update(data)
            yield data
            number += 1
        if sha.hexdigest() != digest:
            raise OSError(f"the database's copy of file {digest} is damaged")


def insert_blob(conn: Connection, digest: str, source: Path, now: float, *, uploaded: bool = False) -> bool:
    """Insert a file. False if the database has it already, or if another daemon is inserting it now."""
    row = {"digest": digest, "size": source.stat().st_size, "last_used_at": now, "uploaded": uploaded}
    written = insert_into(conn, Blobs).values(**row).on_conflict_do_nothing().returning(Blobs.c.digest)
    if conn.execute(written).first() is None:
        return False
    with source.open("rb") as file:
        number = 0
        while data := file.read(CHUNK_BYTES):
            conn.execute(insert(Chunks).values(digest=digest, number=number, data=data))
            number += 1
    return True


def stored_digest(conn: Connection, digest: str) -> str:
    """The sha256 of the data that is stored under `digest`."""
    sha = hashlib.sha256()
    query = select(Chunks.c.data).where(Chunks.c.digest == digest).order_by(Chunks.c.number)
    for data in conn.execute(query, execution_options={"yield_per": 8}).scalars():
        sha.update(data)
    return sha.hexdigest()


def open_blobs(uploads: Path, artifacts: Path, database: Engine, clock: Clock, *, shared: bool) -> BlobStore:
    """The store of this controller. `shared`: in the database, for several controllers; else in the two directories.

    Creates the directories `uploads` and `artifacts` and deletes uploads that a killed daemon left incomplete.
    """
    for folder in (artifacts, uploads):
        folder.mkdir(mode=0o700, exist_ok=True)
    for partial in uploads.glob(f"{TEMP_PREFIX}*"):
        partial.unlink(missing_ok=True)
    blobs = DirectoryBlobs(uploads, artifacts)
    return SqlBlobs(blobs, database, clock) if shared else blobs


def path_or_error(blobs: BlobStore, digest: str) -> Path:
    """The file of an upload on this computer. Raises FileNotFoundError."""
    path = blobs.path(digest)
    if path is None:
        raise FileNotFoundError(f"the upload {digest} is missing")
    return path
