"""The files of a folder that several processes write into.

The folder is on one disk, or each process has its own mount of it. Through a mount a process sees its own writes at
once, and those of other processes only later.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from perdure.checkpoint.durability import status
from perdure.checkpoint.durability.file_version import FileVersion
from perdure.checkpoint.durability.mounts import MountSnapshot
from perdure.checkpoint.errors import CheckpointError
from perdure.checkpoint.format import digest, file_changes, manifest, sampling
from perdure.checkpoint.format.manifest import FileRecord
from perdure.checkpoint.ranks.collective import capture, gather_or_raise
from perdure.checkpoint.ranks.group import Group
from perdure.checkpoint.save import first_upload
from perdure.checkpoint.save.save_directory import SaveDirectory

_READER_THREADS = 4

# Name of a file → its modification time (ns) and size, as one process sees them.
_Files = Mapping[str, "tuple[int, int]"]


def collect_records(
    directory: SaveDirectory, folder: str, prefix: str, group: Group, *, topic: str, doing: str
) -> list[FileRecord]:
    """The manifest's records of `folder` (relative to the directory). One process reads and flushes each file.

    The result is the same in every process. Raises CheckpointError, in all of them, when nothing was written or one of
    them failed.
    """
    path = os.path.join(directory.root, folder)
    scanned = gather_or_raise(
        group, f"{topic}-seen", capture(lambda: _scan(path)), doing=doing, encode=_encode_files, decode=_decode_files
    )
    mine = sorted(name for name, rank in _assign_readers(scanned).items() if rank == group.rank)
    parts = gather_or_raise(
        group,
        f"{topic}-read",
        capture(lambda: _digest_files(directory, folder, prefix, mine)),
        doing=doing,
        encode=lambda records: [vars(record) for record in records or ()],
        decode=lambda rows: [FileRecord(**row) for row in rows],
    )
    records = [record for part in parts for record in part]
    if not records:
        raise CheckpointError(f"{doing}: nothing was written to {path}")
    return sorted(records, key=lambda record: record.path)


def _scan(path: str) -> _Files:
    stamps = file_changes.scan(path) if os.path.isdir(path) else {}
    return {name: (stamp.mtime_ns, stamp.size) for name, stamp in stamps.items()}


def _encode_files(files: _Files | None) -> dict[str, list[int]]:
    return {name: [*values] for name, values in (files or {}).items()}


def _decode_files(value: Mapping[str, Any]) -> _Files:
    return {name: (mtime_ns, size) for name, (mtime_ns, size) in value.items()}


def _assign_readers(scanned: list[_Files]) -> dict[str, int]:
    """Which rank reads each file: one that sees its newest version. If several do, they alternate."""
    readers = {}
    for number, name in enumerate(sorted(set().union(*scanned))):
        newest = max(files[name] for files in scanned if name in files)
        candidates = [rank for rank, files in enumerate(scanned) if files.get(name) == newest]
        readers[name] = candidates[number % len(candidates)]
    return readers


def _digest_files(directory: SaveDirectory, folder: str, prefix: str, names: list[str]) -> list[FileRecord]:
    path = os.path.join(directory.root, folder)
    mounts = directory.mounts
    with ThreadPoolExecutor(_READER_THREADS) as readers:
        records = list(readers.map(lambda name: _digest_file(path, name, mounts), names))
    written = {os.path.dirname(os.path.join(path, name)) for name in names}
    for each in written | ({directory.root} if names else set()):
        manifest.sync_directory(each)
    first_upload.wait_if_first(directory, prefix, [os.path.join(path, name) for name in names])
    return records


def _digest_file(path: str, name: str, mounts: MountSnapshot) -> FileRecord:
    absolute, algorithm = os.path.join(path, name), digest.preferred_algorithm()
    version = FileVersion.from_stat(os.stat(absolute))
    size, content = version.size, status.readable_path(absolute, mounts)
    return FileRecord(
        path=f"{os.path.basename(path)}/{name}",
        size=size,
        digest=digest.hash_file(content, algorithm, length=size, sync=True),
        algorithm=algorithm,
        sample=sampling.hash_sample(content, algorithm, size),
        mtime_ns=(version.earliest_ns, version.latest_ns),
    )
