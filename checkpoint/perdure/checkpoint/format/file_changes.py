"""What a call wrote: the files of a directory before and after it, compared by size, modification time and inode.

Symbolic links are neither followed nor recorded: a `latest` link is a name for a checkpoint, not a part of one.
`.perdure` directories belong to this library and are ignored.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch

OWN_DIR = ".perdure"

# File times advance with the kernel's tick: two writes within one tick cannot be distinguished.
_TICK_NS = 10_000_000


@dataclass(frozen=True)
class Stamp:
    """The result of `stat` for a file. If two stamps are equal, it was not written in between."""

    size: int
    mtime_ns: int
    inode: int

    @classmethod
    def from_stat(cls, stat: os.stat_result) -> Stamp:
        return cls(stat.st_size, stat.st_mtime_ns, stat.st_ino)


def scan(root: str, ignore: Sequence[str] = ()) -> dict[str, Stamp]:
    """Every file under `root`: path relative to it, with `/` → stamp. `ignore`: patterns of relative paths and names.

    Files that vanish meanwhile are left out. Raises OSError when a directory cannot be read.
    """
    stamps: dict[str, Stamp] = {}
    pending = [""]
    while pending:
        folder = pending.pop()
        try:
            entries = os.scandir(os.path.join(root, folder))
        except FileNotFoundError:
            if not folder:
                raise
            continue
        with entries:
            for entry in entries:
                path = f"{folder}/{entry.name}" if folder else entry.name
                if entry.name == OWN_DIR or _is_ignored(path, entry.name, ignore):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    pending.append(path)
                elif entry.is_file(follow_symlinks=False):
                    try:
                        stamps[path] = Stamp.from_stat(entry.stat(follow_symlinks=False))
                    except FileNotFoundError:
                        continue
    return stamps


def wait_for_clock_tick(stamps: dict[str, Stamp]) -> None:
    """Wait until any later write will change a stamp: at most one tick (10 ms), and only after a recent write."""
    newest_ns = max((stamp.mtime_ns for stamp in stamps.values()), default=0)
    age_ns = time.time_ns() - newest_ns
    if 0 <= age_ns < _TICK_NS:
        time.sleep((_TICK_NS - age_ns) / 1e9)


def changed(before: dict[str, Stamp], after: dict[str, Stamp]) -> dict[str, Stamp]:
    """The files of `after` that are new or differ from `before`, in the order of names."""
    return {path: after[path] for path in sorted(after) if before.get(path) != after[path]}


def _is_ignored(path: str, name: str, ignore: Sequence[str]) -> bool:
    return any(fnmatch(path, pattern) or fnmatch(name, pattern) for pattern in ignore)
