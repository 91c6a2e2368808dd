"""Which files the bucket has, recorded in the form of rclone's cache (`cache_record`)."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from perdure.agent.storage.rclone import Remote
from perdure.agent.storage.snapshot import Stamp
from perdure.agent.storage.synced.folder_tree import read_tree
from perdure.agent.storage.vfs_cache import VfsCache, record_of


class UploadRecords:
    """The records below `home`, which outlive the agent."""

    def __init__(self, home: Path, remote: Remote) -> None:
        inner = Path(remote.name, remote.target.strip("/"))
        self.cache = VfsCache(home / "cache", remote.target)
        self._folder = home / "cache" / "vfsMeta" / inner
        self._content = home / "cache" / "vfs" / inner
        self._temporary = home / "record"

    def note(self, name: str, stamp: Stamp) -> None:
        """Record that the bucket has this content of the file. A record is complete at every moment. Raises OSError."""
        record = self._folder / name
        try:
            row = record_of(stamp.size, stamp.mtime_ns, f"{stamp.size},{stamp.mtime_ns}")
        except (ValueError, OverflowError) as error:
            raise OSError(errno.EOVERFLOW, f"its modification time is no date: {error}", name) from None
        record.parent.mkdir(parents=True, exist_ok=True)
        self._temporary.write_text(json.dumps(row))
        os.replace(self._temporary, record)

    def forget(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            os.unlink(self._folder / name)

    def uploaded_files(self) -> Iterator[tuple[str, Stamp]]:
        """(file, its content in the bucket). Raises OSError."""
        if not self._folder.is_dir():
            return
        for name in read_tree(str(self._folder)).files:
            record = self.cache.find_record(name)
            if record is not None and record.is_uploaded and record.size is not None and record.mtime_ns is not None:
                yield name, Stamp(record.size, record.mtime_ns)

    def clear(self, content: str) -> None:
        """Forget all files, and let the cache show those of the folder `content` as its own. Raises OSError."""
        if self._folder.exists():
            shutil.rmtree(self._folder)
        self._folder.mkdir(parents=True)
        self._content.parent.mkdir(parents=True, exist_ok=True)
        if not os.path.lexists(self._content):
            self._content.symlink_to(content)
