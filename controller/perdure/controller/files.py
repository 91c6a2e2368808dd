"""Files by their sha256: what users uploaded, and what nodes run. In a folder, or for several daemons in the database.

Files are written beside and renamed, so half of one is never seen.
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

from perdure.controller.clock import Clock
from perdure.controller.store.database import insert_into
from perdure.controller.store.tables import FileChunkRow, FileRow

Stored = FileRow.__table__  # type: ignore[attr-defined]
Chunks = FileChunkRow.__table__  # type: ignore[attr-defined]

CHUNK_BYTES = 2**20
ASIDE = ".upload-"
"""How the names of files begin that are being written, or removed: what a killed daemon left of them is removed."""
_DIGEST = re.compile("[0-9a-f]{64}")


class Files(Protocol):
    """`folder`: on the disk where files are kept, for those who write one before it is handed in."""

    folder: Path

    def has(self, digest: str) -> bool: ...

    def path(self, digest: str) -> Path | None:
        """Where this computer has the file; None if there is no such file."""
        ...

    def keep(self, digest: str, written: Path) -> None:
        """Keep a file that a user sent, whose sha256 is `digest`, for good. `written` is moved away."""
        ...

    def renew(self, digest: str, now: float) -> bool:
        """`has`, for somebody who is about to have a job name it: `unused` does not count it from `now` on."""
        ...

    def unused(self, before: float, limit: int) -> list[str]:
        """Up to `limit` files that users sent, and that were neither sent nor asked for since `before`."""
        ...

    def remove(self, digest: str, before: float) -> bool:
        """Remove a file unless it was sent or asked for since `before`. Whether it was removed."""
        ...


class FolderFiles:
    """Files of this computer. `more`: folders beside `folder` whose files are served, too."""

    def __init__(self, folder: Path, *more: Path) -> None:
        self.folder = folder
        self._folders = (folder, *more)

    def has(self, digest: str) -> bool:
        return self.path(digest) is not None

    def path(self, digest: str) -> Path | None:
        return next((f / digest for f in self._folders if (f / digest).exists()), None)

    def keep(self, digest: str, written: Path) -> None:
        os.replace(written, self.folder / digest)

    def renew(self, digest: str, now: float) -> bool:
        found = self.path(digest)
        if found is None:
            return False
        try:
            os.utime(found, (now, now))
        except FileNotFoundError:
            return False
        return True

    def unused(self, before: float, limit: int) -> list[str]:
        files = (entry for entry in os.scandir(self.folder) if _DIGEST.fullmatch(entry.name))
        return list(islice((file.name for file in files if file.stat().st_mtime < before), limit))

    def remove(self, digest: str, before: float) -> bool:
        path, aside = self.folder / digest, self.folder / f"{ASIDE}{digest}"
        try:
            path.rename(aside)
        except FileNotFoundError:
            return False
        # Only now nobody can ask for it any more; who did so a moment ago finds it where it was.
        if aside.stat().st_mtime >= before:
            aside.rename(path)
            return False
        aside.unlink()
        return True


class SharedFiles:
    """Files in the database, which every daemon serves; `cache` is this computer's copies of them."""

    def __init__(self, cache: FolderFiles, database: Engine, clock: Clock) -> None:
        self.folder = cache.folder
        self._cache = cache
        self._database = database
        self._clock = clock

    def has(self, digest: str) -> bool:
        with self._database.connect() as conn:
            return conn.execute(select(Stored.c.digest).where(Stored.c.digest == digest)).first() is not None

    def path(self, digest: str) -> Path | None:
        found = self._cache.path(digest)
        if found is None and self.has(digest):
            handle, temporary = tempfile.mkstemp(dir=self.folder, prefix=".fetch-")
            try:
                with os.fdopen(handle, "wb") as file:
                    for data in self._pieces(digest):
                        file.write(data)
                self._cache.keep(digest, Path(temporary))
            finally:
                Path(temporary).unlink(missing_ok=True)
            found = self._cache.path(digest)
        return found

    def keep(self, digest: str, written: Path) -> None:
        if not self.has(digest):
            with self._database.begin() as conn:
                store(conn, digest, written, self._clock.now(), uploaded=True)
        self._cache.keep(digest, written)

    def share(self, digest: str, written: Path) -> None:
        """Let every daemon have a file that nodes run, which stays where it is."""
        if not self.has(digest):
            with self._database.begin() as conn:
                store(conn, digest, written, self._clock.now())

    def renew(self, digest: str, now: float) -> bool:
        with self._database.begin() as conn:
            return conn.execute(update(Stored).where(Stored.c.digest == digest).values(at=now)).rowcount == 1

    def unused(self, before: float, limit: int) -> list[str]:
        query = select(Stored.c.digest).where(Stored.c.uploaded, Stored.c.at < before).limit(limit)
        with self._database.connect() as conn:
            return list(conn.execute(query).scalars())

    def remove(self, digest: str, before: float) -> bool:
        with self._database.begin() as conn:
            unused = (Stored.c.digest == digest, Stored.c.uploaded, Stored.c.at < before)
            if conn.execute(delete(Stored).where(*unused)).rowcount == 0:
                return False
            conn.execute(delete(Chunks).where(Chunks.c.digest == digest))
        self._cache.remove(digest, before)
        return True

    def _pieces(self, digest: str) -> Iterator[bytes]:
        """One query a piece: a file is longer than a transaction should be. Raises OSError for one that is broken."""
        number, sha = 0, hashlib.sha256()
        while True:
            with self._database.connect() as conn:
                wanted = (Chunks.c.digest == digest, Chunks.c.number == number)
                data = conn.execute(select(Chunks.c.data).where(*wanted)).scalar()
            if data is None:
                break
            sha.update(data)
            yield data
            number += 1
        if sha.hexdigest() != digest:
            raise OSError(f"the database's copy of file {digest} is broken")


def store(conn: Connection, digest: str, source: Path, at: float, *, uploaded: bool = False) -> bool:
    """Write a file into the database. False if it is there already, or is just being written by another."""
    row = {"digest": digest, "size": source.stat().st_size, "at": at, "uploaded": uploaded}
    written = insert_into(conn, Stored).values(**row).on_conflict_do_nothing().returning(Stored.c.digest)
    if conn.execute(written).first() is None:
        return False
    with source.open("rb") as file:
        number = 0
        while data := file.read(CHUNK_BYTES):
            conn.execute(insert(Chunks).values(digest=digest, number=number, data=data))
            number += 1
    return True


def digest_of(conn: Connection, digest: str) -> str:
    """The sha256 of what is stored under `digest`."""
    sha = hashlib.sha256()
    query = select(Chunks.c.data).where(Chunks.c.digest == digest).order_by(Chunks.c.number)
    for data in conn.execute(query, execution_options={"yield_per": 8}).scalars():
        sha.update(data)
    return sha.hexdigest()
