"""The files of a folder that several processes write into: on one disk, or each through a mount of its own, where it
sees what it wrote itself at once, and what others wrote only later."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor

from perdure.checkpoint import digest, durability, first, manifest, samples, snapshot
from perdure.checkpoint.errors import CheckpointError
from perdure.checkpoint.group import Group
from perdure.checkpoint.manifest import FileRecord
from perdure.checkpoint.together import all_of, attempt

_READERS = 4


def records(root: str, folder: str, prefix: str, group: Group, *, topic: str, doing: str) -> list[FileRecord]:
    """What a manifest has to say of `folder` (relative to `root`); each file is flushed, and read by one process.

    The same in every process. Raises CheckpointError, in all of them, when nothing was written or one failed.
    """
    seen = all_of(group, f"{topic}-seen", attempt(lambda: _seen(os.path.join(root, folder))), doing=doing)
    mine = sorted(name for name, rank in _readers_of(seen).items() if rank == group.rank)
    said = all_of(group, f"{topic}-read", attempt(lambda: _read(root, folder, prefix, mine)), doing=doing)
    found = [FileRecord(**record) for part in said for record in part]
    if not found:
        raise CheckpointError(f"{doing}: nothing was written to {os.path.join(root, folder)}")
    return sorted(found, key=lambda record: record.path)


def _seen(path: str) -> dict[str, list[int]]:
    """Name → time and size of every file; as lists, which is what becomes of them on the way to other processes."""
    found = snapshot.take(path) if os.path.isdir(path) else {}
    return {name: [stamp.mtime_ns, stamp.size] for name, stamp in found.items()}


def _readers_of(seen: list[dict[str, list[int]]]) -> dict[str, int]:
    """Which rank reads each file: one that sees it as it was written last; of several, they take turns."""
    readers = {}
    for number, name in enumerate(sorted(set().union(*seen))):
        newest = max(one[name] for one in seen if name in one)
        candidates = [rank for rank, one in enumerate(seen) if one.get(name) == newest]
        readers[name] = candidates[number % len(candidates)]
    return readers


def _read(root: str, folder: str, prefix: str, names: list[str]) -> list[dict[str, object]]:
    path = os.path.join(root, folder)
    with ThreadPoolExecutor(_READERS) as readers:
        found = list(readers.map(lambda name: vars(_record(path, name)), names))
    for inner in {os.path.dirname(os.path.join(path, name)) for name in names} | ({root} if names else set()):
        manifest.sync_directory(inner)
    first.upload(root, prefix, [os.path.join(path, name) for name in names])
    return found


def _record(path: str, name: str) -> FileRecord:
    absolute, algorithm = os.path.join(path, name), digest.preferred_algorithm()
    size, content = os.path.getsize(absolute), durability.where_to_read(absolute)
    found = digest.of_file(content, algorithm, length=size, sync=True)
    sample = samples.of_file(content, algorithm, size)
    return FileRecord(f"{os.path.basename(path)}/{name}", size, found, algorithm, sample)
