"""rclone's write-back cache on the disk: which files are not in the bucket yet, and how to save them after a crash.

rclone stores each cached file in `vfs/<remote>/<path>` and a JSON record of it in `vfsMeta/<remote>/<path>`;
`perdure.checkpoint.durability.cache_record` describes the record.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import shutil
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from perdure.checkpoint.durability.cache_record import CacheRecord, has_record_name, parse_record
from perdure.checkpoint.durability.file_version import FileVersion

_MAX_REMEMBERED = 1000


@dataclass(frozen=True)
class PendingFile:
    """A file whose newest bytes are not yet in the bucket. `name` is relative to the mount; `size` in bytes."""

    name: str
    size: int


class UploadState(Enum):
    """The state of one file, by its record in the cache."""

    PENDING = "pending"  # its newest bytes are not yet in the bucket
    UPLOADED = "uploaded"
    UNRECORDED = "unrecorded"  # of this content: written by another node, evicted after its upload, or removed
    UNKNOWN = "unknown"  # there are no records where they should be, or the file's record may have another name


class VfsCache:
    """An rclone cache directory. `target`: what follows the remote's name and colon.

    `remote`: the remote's name, if other mounts use the same directory; None if it belongs to one mount.
    """

    def __init__(self, directory: Path, target: str, *, remote: str | None = None) -> None:
        self.directory = directory
        self._target = target.strip("/")
        self._remote = remote
        self._clean: dict[str, tuple[int, int, int]] = {}
        # Files that were read, and do not begin with the content that was meant.
        self._other: OrderedDict[tuple[str, CacheRecord, FileVersion], None] = OrderedDict()

    def dirty_files(self) -> list[PendingFile]:
        """Files not yet in the bucket, including open ones. Records that did not change are not read again."""
        clean, pending = {}, []
        for path in _files_under(self.directory / "vfsMeta"):
            try:
                status = os.stat(path)
                stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
                record = None if self._clean.get(path) == stamp else _read_record(path)
            except FileNotFoundError:
                continue
            if record is not None and record["Dirty"]:
                pending.append(PendingFile(self._name(path), self._size(path, record)))
            else:
                clean[path] = stamp
        self._clean = clean
        return sorted(pending, key=lambda file: file.name)

    def upload_state(self, name: str, version: FileVersion | None = None) -> UploadState:
        """The state of the file `name`, which is relative to the mount. Reads one small local file.

        `version`: the content that is meant; None: whatever content the file has.
        """
        if not has_record_name(name):
            return UploadState.UNKNOWN
        states = {self._state_in(folder, name, version) for folder in self._record_folders()}
        for state in (UploadState.PENDING, UploadState.UPLOADED, UploadState.UNRECORDED):
            if state in states:
                return state
        return UploadState.UNKNOWN

    def _state_in(self, folder: str, name: str, version: FileVersion | None) -> UploadState:
        path = os.path.join(folder, name)
        record = _find_record(path)
        if record is None:
            return UploadState.UNRECORDED
        if not record.is_uploaded:
            return UploadState.PENDING
        if record.has(version):
            return UploadState.UPLOADED
        if version is None or not version.may_begin(record.size or 0) or (path, record, version) in self._other:
            return UploadState.UNRECORDED
        data = self.directory / "vfs" / os.path.relpath(path, self.directory / "vfsMeta")
        with contextlib.suppress(OSError):
            if version.begins(str(data)):
                return UploadState.UPLOADED if _find_record(path) == record else UploadState.PENDING
        self._other[path, record, version] = None
        while len(self._other) > _MAX_REMEMBERED:
            self._other.popitem(last=False)
        return UploadState.UNRECORDED

    def find_record(self, name: str) -> CacheRecord | None:
        """The record of the file `name`; None if there is none. One that is being rewritten is not uploaded."""
        records = (_find_record(os.path.join(folder, name)) for folder in self._record_folders())
        return next((record for record in records if record is not None), None)

    def data_path(self, name: str) -> str | None:
        """Where the cache has the content of the file `name`; None if it has none."""
        for folder in self._record_folders():
            path = os.path.join(self.directory, "vfs", os.path.relpath(folder, self.directory / "vfsMeta"), name)
            if os.path.isfile(path):
                return path
        return None

    def _record_folders(self) -> list[str]:
        """The folders with the mount's records: usually one; several after the remote's name has changed."""
        records = self.directory / "vfsMeta"
        with contextlib.suppress(FileNotFoundError):
            remotes = [self._remote] if self._remote is not None else os.listdir(records)
            folders = [os.path.join(records, remote, self._target) for remote in remotes]
            return [folder for folder in folders if os.path.isdir(folder)]
        return []

    def repair_records(self) -> list[str]:
        """Repair the records that a killed rclone left half-written; returns the names of the files that this saves.

        rclone rewrites a record by truncating it, often within milliseconds of close(). Killed at that moment, it
        leaves an empty record, and the next rclone on this cache would delete that file's data, uploaded or not. So a
        file with data and no readable record is marked dirty: at worst it is uploaded twice. A file with holes is left
        to be deleted: it was being downloaded, and its holes must not replace the object. No rclone may be running.
        """
        saved = []
        for path in _files_under(self.directory / "vfs"):
            record = self.directory / "vfsMeta" / os.path.relpath(path, self.directory / "vfs")
            if not _is_readable(record) and os.stat(path).st_size and not has_holes(path):
                _write_dirty_record(record, os.stat(path))
                saved.append(self._name(str(record)))
        return sorted(saved)

    def consolidate(self, remote: str) -> bool:
        """Move files of other remote names under `remote`, the current one; returns whether there were any.

        rclone's name for the remote contains a hash of its settings: with other credentials, the same mount has another
        name, and rclone reads only that folder. Files that `remote` already has are kept. No rclone may be running.
        """
        moved = False
        for kind in ("vfs", "vfsMeta"):  # data first: `repair_records` handles data without a record
            for other in sorted(self._others(kind, remote)):
                for path in list(_files_under(other)):
                    target = self.directory / kind / remote / os.path.relpath(path, other)
                    if not target.exists():
                        target.parent.mkdir(parents=True, exist_ok=True)
                        os.replace(path, target)
                        moved = True
                shutil.rmtree(other)
        return moved

    def needs_consolidation(self, remote: str) -> bool:
        """Whether `consolidate` would move any file."""
        return any(any(_files_under(other)) for other in self._others("vfsMeta", remote))

    def _others(self, kind: str, remote: str) -> list[Path]:
        with contextlib.suppress(FileNotFoundError):
            return [path for path in (self.directory / kind).iterdir() if path.name != remote]
        return []

    def _size(self, path: str, record: dict[str, Any]) -> int:
        """The record's size is set at close; the data grows while the file is open. The larger one counts."""
        data = self.directory / "vfs" / os.path.relpath(path, self.directory / "vfsMeta")
        with contextlib.suppress(OSError):
            return max(int(record["Size"]), data.stat().st_size)
        return int(record["Size"])

    def _name(self, path: str) -> str:
        # vfsMeta/<remote, with a hash of its settings>/<target>/<name>
        inner = os.path.relpath(path, self.directory / "vfsMeta").partition("/")[2]
        top = f"{self._target}/" if self._target else ""
        return inner[len(top) :] if inner.startswith(top) else inner


def _files_under(directory: Path) -> Iterator[str]:
    for folder, _, names in os.walk(directory):
        for name in names:
            yield os.path.join(folder, name)


_BEING_WRITTEN = CacheRecord(is_uploaded=False, size=None, mtime_ns=None)


def _find_record(path: str) -> CacheRecord | None:
    """The record at `path`; None if there is none."""
    try:
        with open(path, "rb") as file:
            return parse_record(file.read())
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError):
        return _BEING_WRITTEN


def _read_record(path: str) -> dict[str, Any]:
    """A record as rclone wrote it; one that is being rewritten counts as dirty. Raises FileNotFoundError."""
    with open(path, "rb") as file:
        raw = file.read()
    return _parsed(raw) or {"Dirty": True, "Size": 0}


def _parsed(raw: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(raw)
        return {"Dirty": bool(record["Dirty"]), "Size": int(record["Size"])}
    except (ValueError, KeyError, TypeError):
        return None


def _is_readable(record: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return _parsed(record.read_bytes()) is not None
    return False


def has_holes(path: str) -> bool:
    """Whether the file has a hole before its end: content that was not downloaded. Raises OSError."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        return size > 0 and os.lseek(file.fileno(), 0, os.SEEK_HOLE) < size


def record_of(size: int, mtime_ns: int, fingerprint: str) -> dict[str, Any]:
    """The record of a file that is wholly in the cache. `fingerprint`: of the object in the bucket; "": it is dirty."""
    seconds, nanoseconds = divmod(mtime_ns, 1_000_000_000)  # to the last digit: `FileVersion` compares it
    second = datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)
    moment = f"{second:%Y-%m-%dT%H:%M:%S}.{nanoseconds:09}Z"
    return {
        "ModTime": moment,
        "ATime": moment,
        "Size": size,
        "Rs": [{"Pos": 0, "Size": size}],
        "Fingerprint": fingerprint,
        "Dirty": not fingerprint,
    }


def _write_dirty_record(record: Path, data: os.stat_result) -> None:
    record.parent.mkdir(parents=True, exist_ok=True)
    temporary = record.with_name(record.name + ".perdure-tmp")
    temporary.write_text(json.dumps(record_of(data.st_size, data.st_mtime_ns, "")))
    os.replace(temporary, record)
