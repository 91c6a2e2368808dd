"""A mount with write-back as far as its files show. rclone's records are real files; uploads are simulated."""

from __future__ import annotations

import datetime
import json
import time
from pathlib import Path
from typing import Any

from perdure.agent.storage.durability_watcher import BucketMount
from perdure.agent.storage.vfs_cache import VfsCache
from perdure.checkpoint.durability import journal
from perdure.checkpoint.durability.file_version import FileVersion


class CachedBucket:
    """`write` leaves a dirty record, `upload` a clean one."""

    def __init__(self, root: Path) -> None:
        self.path = root / "mount"
        self.lost = False
        self._records = root / "cache" / "vfsMeta" / "perdure{h4sh}" / "bucket" / "prefix"
        self._records.mkdir(parents=True)
        self.path.mkdir()
        self.cache = VfsCache(root / "cache", "bucket/prefix")

    @property
    def mount(self) -> BucketMount:
        return BucketMount((str(self.path),), self.cache, lambda: self.lost)

    def write(self, name: str) -> None:
        (self.path / name).parent.mkdir(parents=True, exist_ok=True)
        (self.path / name).write_bytes(b"weights")
        self._record(name, {"Dirty": True, "Fingerprint": ""})

    def upload(self, *names: str) -> None:
        for name in names:
            self._record(name, {"Dirty": False, "Fingerprint": "7,2026"})

    def evict(self, name: str) -> None:
        (self._records / name).unlink()

    def remove(self, name: str) -> None:
        (self.path / name).unlink()
        self.evict(name)

    def tear_record(self, name: str) -> None:
        (self._records / name).write_text('{"Dir')

    def download(self, name: str) -> None:
        """The file is read, and its object is another node's. The record has the time of the read."""
        self._record(name, {"Dirty": False, "Fingerprint": "7,2026", "ModTime": go_time(time.time_ns())})

    def _record(self, name: str, record: dict[str, Any]) -> None:
        status = (self.path / name).stat()
        (self._records / name).parent.mkdir(parents=True, exist_ok=True)
        record = {"Size": status.st_size, "ModTime": go_time(status.st_mtime_ns), **record}
        (self._records / name).write_text(json.dumps(record))

    def commit(self, step: int, *files: str) -> None:
        """Save and commit as the library does, with the manifest as the last file."""
        for name in files:
            self.write(name)
        self.commit_written(step, *files)

    def commit_written(self, step: int, *files: str) -> None:
        versions = {name: FileVersion.from_stat((self.path / name).stat()) for name in files}
        self.write(f".perdure/{step}.json")
        manifest = str(self.path / ".perdure" / f"{step}.json")
        journal.record(step, journal.COMMITTED, manifest, directory=str(self.path), files=versions)


def go_time(time_ns: int) -> str:
    seconds, nanoseconds = divmod(time_ns, 1_000_000_000)
    second = datetime.datetime.fromtimestamp(seconds, datetime.timezone(datetime.timedelta(hours=2)))
    return f"{second:%Y-%m-%dT%H:%M:%S}.{nanoseconds:09}".rstrip("0") + "+02:00"


def durable_steps(path: Path) -> list[int]:
    """The steps that the journal calls durable, in their order."""
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [line["step"] for line in lines if line["state"] == "durable"]
