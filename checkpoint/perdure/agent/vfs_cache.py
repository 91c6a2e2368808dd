"""rclone's write-back cache on the disk: which files are not in the bucket yet, and how to save them after a crash.

rclone keeps each cached file in `vfs/<remote>/<path>` and a JSON record of it in `vfsMeta/<remote>/<path>`. `Dirty` in
the record is true from the first open for writing until the object is in the bucket and compared.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class PendingFile:
    """A file whose newest bytes are not yet in the bucket. `name` is relative to the mount; `size` in bytes."""

    name: str
    size: int


class Cache:
    """An rclone cache directory that belongs to one mount. `target`: what follows the remote's name and colon."""

    def __init__(self, directory: Path, target: str) -> None:
        self.directory = directory
        self._target = target.strip("/") + "/"
        self._clean: dict[str, tuple[int, int, int]] = {}

    def dirty(self) -> list[PendingFile]:
        """Files not yet in the bucket, open ones included. Records that did not change since are not read again."""
        clean, pending = {}, []
        for path in _files_under(self.directory / "vfsMeta"):
            try:
                found = os.stat(path)
                stamp = (found.st_mtime_ns, found.st_size, found.st_ino)
                record = None if self._clean.get(path) == stamp else _read_record(path)
            except FileNotFoundError:
                continue
            if record is not None and record["Dirty"]:
                pending.append(PendingFile(self._name(path), self._size(path, record)))
            else:
                clean[path] = stamp
        self._clean = clean
        return sorted(pending, key=lambda file: file.name)

    def repair(self) -> list[str]:
        """Make good the records that a killed rclone left half-written; returns the names of the files saved by it.

        rclone rewrites a record by truncating it, often within milliseconds of close(). Killed at that moment it leaves
        an empty record, and the next rclone on this cache would remove the data of such a file, uploaded or not. So a
        file with data and no readable record is marked dirty: at worst it is uploaded a second time. One with holes is
        left to be removed: it was being downloaded, and its holes must not replace the object. No rclone may run.
        """
        saved = []
        for path in _files_under(self.directory / "vfs"):
            record = self.directory / "vfsMeta" / os.path.relpath(path, self.directory / "vfs")
            if not _is_readable(record) and _is_whole(path):
                _write_dirty_record(record, os.stat(path))
                saved.append(self._name(str(record)))
        return sorted(saved)

    def gather(self, remote: str) -> bool:
        """Bring under `remote`, as rclone names it now, what lies under other names; returns whether there was any.

        The name has a hash of rclone's settings in it: with other credentials, say, the same mount has another one, and
        rclone looks at nothing but that. What `remote` has already is kept. No rclone may run.
        """
        found = False
        for kind in ("vfs", "vfsMeta"):  # data first: `repair` makes good what has no record
            for other in sorted(self._others(kind, remote)):
                for path in list(_files_under(other)):
                    target = self.directory / kind / remote / os.path.relpath(path, other)
                    if not target.exists():
                        target.parent.mkdir(parents=True, exist_ok=True)
                        os.replace(path, target)
                        found = True
                shutil.rmtree(other)
        return found

    def is_scattered(self, remote: str) -> bool:
        """Whether there are files that `gather` would bring under `remote`."""
        return any(any(_files_under(other)) for other in self._others("vfsMeta", remote))

    def _others(self, kind: str, remote: str) -> list[Path]:
        with contextlib.suppress(FileNotFoundError):
            return [path for path in (self.directory / kind).iterdir() if path.name != remote]
        return []

    def _size(self, path: str, record: dict[str, Any]) -> int:
        """The record's size is that at the last close; the cached data grow while the file is open."""
        data = self.directory / "vfs" / os.path.relpath(path, self.directory / "vfsMeta")
        with contextlib.suppress(OSError):
            return max(int(record["Size"]), data.stat().st_size)
        return int(record["Size"])

    def _name(self, path: str) -> str:
        # vfsMeta/<remote, with a hash of its settings>/<target>/<name>
        inner = os.path.relpath(path, self.directory / "vfsMeta").partition("/")[2]
        return inner[len(self._target) :] if inner.startswith(self._target) else inner


def _files_under(directory: Path) -> Iterator[str]:
    for folder, _, names in os.walk(directory):
        for name in names:
            yield os.path.join(folder, name)


def _read_record(path: str) -> dict[str, Any]:
    """A record as rclone wrote it; one that is just being rewritten counts as dirty. Raises FileNotFoundError."""
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


def _is_whole(path: str) -> bool:
    """Whether the file holds data, and data alone: no hole before its end."""
    with open(path, "rb") as file:
        size = os.fstat(file.fileno()).st_size
        return size > 0 and os.lseek(file.fileno(), 0, os.SEEK_HOLE) == size


def _write_dirty_record(record: Path, data: os.stat_result) -> None:
    moment = datetime.datetime.fromtimestamp(data.st_mtime, datetime.timezone.utc).isoformat()
    content = {
        "ModTime": moment,
        "ATime": moment,
        "Size": data.st_size,
        "Rs": [{"Pos": 0, "Size": data.st_size}],
        "Fingerprint": "",
        "Dirty": True,
    }
    record.parent.mkdir(parents=True, exist_ok=True)
    half = record.with_name(record.name + ".perdure-half")
    half.write_text(json.dumps(content))
    os.replace(half, record)
