"""Checkpoints as they lie in a directory: the manifests of one step together, and whether their files are whole.

A step may have several manifests: two functions that save parts of it side by side, or a step saved twice. The
checkpoint is the union of their files; where two list the same file, the newer one's record counts.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from perdure.checkpoint import digest, durability, manifest, names, samples
from perdure.checkpoint.errors import patiently
from perdure.checkpoint.manifest import Entry, FileRecord, Manifest, ManifestDamaged
from perdure.checkpoint.state.crew import Crew

_READERS = 4


@dataclass(frozen=True)
class Checkpoint:
    """One step of one prefix. `damage`: what is wrong with its manifests, None while all can be believed."""

    root: str
    prefix: str
    step: int
    manifests: tuple[Manifest, ...]
    damage: str | None = None

    @property
    def files(self) -> dict[str, FileRecord]:
        """Path relative to the save_dir → what was committed."""
        return {record.path: record for one in self.manifests for record in one.files}

    @property
    def all_paths(self) -> list[str]:
        """Absolute paths of its files and manifests."""
        files = [os.path.join(self.root, path) for path in self.files]
        return files + [manifest.path_of(self.root, one.name) for one in self.manifests]

    def fault(self, verify: str = samples.FULL) -> str | None:
        """Why it must not be loaded, or None when every file is there as it was committed, as closely as `verify` looks
        (`samples`). Several files are read at once.

        Raises CheckpointUnavailable when a file can not be read now.
        """
        if self.damage:
            return self.damage
        records = list(self.files.values())

        def look(record: FileRecord) -> str | None:
            return file_fault(self.root, record, self.step, verify)

        with Crew(0 if verify == samples.SIZE or len(records) == 1 else _READERS, "perdure-verify") as readers:
            return next(filter(None, readers.map(look, records, ahead=2 * _READERS)), None)


def newest_first(
    root: str, prefix: str | None = None, *, cache: dict[str, Manifest] | None = None
) -> Iterator[Checkpoint]:
    """The saved steps of `prefix` (of every prefix when None), read one by one as they are asked for.

    A manifest found in `cache` is not read again; those read are put there.
    """
    cache = {} if cache is None else cache
    entries = [entry for entry in manifest.entries(root) if prefix in (None, entry.prefix)]
    entries.sort(key=lambda entry: (entry.step, entry.prefix), reverse=True)
    for (step, owner), group in groupby(entries, key=lambda entry: (entry.step, entry.prefix)):
        yield _opened(root, owner, step, group, cache)


def at(root: str, prefix: str, step: int) -> Checkpoint:
    """One step as it lies there now. One whose manifests are gone is damaged."""
    found = [entry for entry in manifest.entries(root) if (entry.prefix, entry.step) == (prefix, step)]
    if not found:
        return Checkpoint(root, prefix, step, (), "its manifest was removed")
    return _opened(root, prefix, step, found, {})


def file_fault(root: str, record: FileRecord, step: int, verify: str = samples.FULL) -> str | None:
    """Why a file is not what was committed, or None when it is, as closely as `verify` looks.

    A file that is not named after its step may have grown since, as logs do: then its first `size` bytes must match.
    """
    path = os.path.join(root, record.path)
    try:
        status = patiently(lambda: os.stat(path), path)
        if not stat.S_ISREG(status.st_mode):
            return f"{record.path} is no longer a file"
        may_have_grown = not names.is_named_after(record.path, step)
        if status.st_size < record.size or (status.st_size > record.size and not may_have_grown):
            return f"{record.path} has {status.st_size} bytes instead of {record.size}"
        if verify == samples.SIZE:
            return None
        content = durability.where_to_read(path)
        if verify == samples.SAMPLED and record.sample:
            wanted = record.sample
            found = patiently(lambda: samples.of_file(content, record.algorithm, record.size), path)
        else:
            wanted = record.digest
            found = patiently(lambda: digest.of_file(content, record.algorithm, length=record.size), path)
    except (FileNotFoundError, NotADirectoryError):
        return f"{record.path} is missing"
    except digest.UnknownAlgorithm:
        return f"{record.path} has a digest of an unknown kind ({record.algorithm})"
    return None if found == wanted else f"{record.path} differs from what was saved ({record.algorithm})"


def _opened(root: str, prefix: str, step: int, entries: Iterable[Entry], cache: dict[str, Manifest]) -> Checkpoint:
    manifests: list[Manifest] = []
    damage: str | None = None
    for entry in entries:
        try:
            if entry.name not in cache:
                cache[entry.name] = manifest.read(root, entry.name)
            manifests.append(cache[entry.name])
        except ManifestDamaged as error:
            damage = str(error)
    return Checkpoint(root, prefix, step, tuple(sorted(manifests, key=lambda one: one.order)), damage)
