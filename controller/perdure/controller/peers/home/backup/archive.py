"""The format of a backup: a compressed tar file whose last member, `manifest.json`, has the digests of the others.

| member | content |
|---|---|
| `perdure.db` | a consistent copy of the database |
| `keys/…`, `tls/…`, `config.yaml`, `installation.json` | keys, certificates and configuration |
| `logs/…` | the logs of the attempts in the database |
| `uploads/…` | the uploads that unfinished jobs need |

A file without the manifest was cut off, and is no backup.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from io import BufferedReader
from pathlib import Path, PurePosixPath
from typing import IO, Any

from perdure.controller.runtime.config.errors import CannotStart

MANIFEST, DATABASE, KEYS = "manifest.json", "perdure.db", "keys"
FORMAT = 1
_CHUNK_BYTES = 2**20
_COMPRESSION = 1  # logs shrink to a tenth even so
_TOP_LEVEL = frozenset({DATABASE, KEYS, "tls", "config.yaml", "installation.json", "logs", "uploads"})


class BackupError(CannotStart):
    """A backup was not written, or cannot be restored. The text says why and what to do."""


@dataclass(frozen=True)
class Manifest:
    """What a backup contains."""

    created_at: float  # epoch seconds, when the database was copied
    version: str  # of Perdure
    controller: str  # the id of the installation
    highest_job: int
    has_keys: bool
    files: dict[str, tuple[int, str]]  # member → size and SHA-256
    format: int = FORMAT

    @staticmethod
    def from_json(text: bytes) -> Manifest:
        values = json.loads(text)
        if values["format"] != FORMAT:
            raise BackupError(f"the backup has format {values['format']}, and this version reads {FORMAT}")
        return Manifest(**{**values, "files": {name: (size, sha) for name, (size, sha) in values["files"].items()}})


class ArchiveWriter:
    """Writes members to a stream, and the manifest at last."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._gzip = gzip.GzipFile(fileobj=stream, mode="wb", compresslevel=_COMPRESSION)
        self._tar = tarfile.open(fileobj=self._gzip, mode="w|", bufsize=_CHUNK_BYTES)  # noqa: SIM115
        self._files: dict[str, tuple[int, str]] = {}

    def add(self, name: str, path: Path) -> bool:
        """Add a file, as long as it is now: it may grow meanwhile. False if it does not exist any more."""
        try:
            file = path.open("rb")
        except FileNotFoundError:
            return False
        with file:
            info = tarfile.TarInfo(name)
            info.size, info.mode = file.seek(0, io.SEEK_END), 0o600
            info.mtime = int(path.stat().st_mtime)
            file.seek(0)
            reader = _DigestReader(file)
            self._tar.addfile(info, reader)
        self._files[name] = (info.size, reader.sha.hexdigest())
        return True

    def close(self, **facts: Any) -> Manifest:
        """Write the manifest. `facts`: its other fields."""
        manifest = Manifest(files=self._files, **facts)
        text = json.dumps(asdict(manifest)).encode()
        info = tarfile.TarInfo(MANIFEST)
        info.size, info.mode = len(text), 0o600
        self._tar.addfile(info, io.BytesIO(text))
        self._tar.close()
        self._gzip.close()
        return manifest


def is_backup(path: Path) -> bool:
    """Whether a file begins as a backup does: a compressed tar file whose first member is the database."""
    try:
        with gzip.open(path) as stream, tarfile.open(fileobj=stream, mode="r|", bufsize=_CHUNK_BYTES) as tar:
            first = tar.next()
    except (tarfile.TarError, zlib.error, EOFError, gzip.BadGzipFile):
        return False
    return first is not None and first.name == DATABASE


def extract(source: Path, folder: Path) -> Manifest:
    """Extract a backup into `folder`, and verify it. Raises BackupError for one that is damaged or cut off."""
    extracted: dict[str, tuple[int, str]] = {}
    manifest: Manifest | None = None
    try:
        with gzip.open(source) as stream, tarfile.open(fileobj=stream, mode="r|", bufsize=_CHUNK_BYTES) as tar:
            for info, file in _members(tar):
                if info.name == MANIFEST:
                    manifest = Manifest.from_json(file.read())
                else:
                    extracted[info.name] = _write(file, folder / _checked(info.name))
    except (tarfile.TarError, zlib.error, EOFError, OSError, ValueError, KeyError, TypeError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise BackupError(f"{source}: it is damaged, or no backup: {error}; use another backup") from error
    if manifest is None:
        raise BackupError(f"{source}: it was cut off: its end is missing; use another backup")
    for name in sorted(manifest.files.keys() | extracted.keys()):
        if manifest.files.get(name) != extracted.get(name):
            raise BackupError(f"{source}: {name} is missing or damaged: its digest differs; use another backup")
    return manifest


def _members(tar: tarfile.TarFile) -> Iterator[tuple[tarfile.TarInfo, IO[bytes]]]:
    for info in tar:
        file = tar.extractfile(info) if info.isreg() else None
        if file is None:
            raise ValueError(f"{info.name!r} is not a regular file")
        yield info, file


def _checked(name: str) -> PurePosixPath:
    """The path of a member, which stays in its folder."""
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or path.parts[0] not in _TOP_LEVEL or str(path) != name:
        raise ValueError(f"unexpected name {name!r}")
    return path


def _write(file: IO[bytes], target: Path) -> tuple[int, str]:
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    size, sha = 0, hashlib.sha256()
    with target.open("xb") as out:
        target.chmod(0o600)
        while data := file.read(_CHUNK_BYTES):
            out.write(data)
            sha.update(data)
            size += len(data)
    return size, sha.hexdigest()


class _DigestReader(io.RawIOBase):
    """A file whose reader also computes its digest."""

    def __init__(self, file: BufferedReader) -> None:
        self._file = file
        self.sha = hashlib.sha256()

    def readinto(self, buffer: Any) -> int:
        count = self._file.readinto(buffer)
        self.sha.update(memoryview(buffer)[:count])
        return count
