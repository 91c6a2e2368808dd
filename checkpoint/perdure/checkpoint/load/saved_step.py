"""A checkpoint in its directory: the manifests of one step together. `verify` compares them with the files.

A step may have several manifests: two functions that save parts of it side by side, or a step saved twice. The
checkpoint is the union of their files; where two list the same file, the newer one's record counts.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby

from perdure.checkpoint.durability.file_version import FileVersion
from perdure.checkpoint.durability.mounts import MountSnapshot
from perdure.checkpoint.format import abandoned, manifest
from perdure.checkpoint.format.manifest import FileRecord, Manifest, ManifestDamaged, ManifestEntry


@dataclass(frozen=True)
class Checkpoint:
    """One step of one prefix."""

    root: str
    prefix: str
    step: int
    manifests: tuple[Manifest, ...]
    damage: str | None = None  # what is wrong with its manifests; None if all are valid
    records: tuple[str, ...] = ()  # the names of `format.abandoned`'s, without which it is not the newest

    @property
    def files(self) -> dict[str, FileRecord]:
        """Path relative to the save_dir → what was committed."""
        return {record.path: record for one in self.manifests for record in one.files}

    @property
    def file_versions(self) -> dict[str, FileVersion | None]:
        """Absolute paths of what has to be in the bucket for it to be loaded: its files, each with the content that was
        committed, its manifests, and the records of what was left behind for it."""
        files = {os.path.join(self.root, path): record.version for path, record in self.files.items()}
        names = [*(one.name for one in self.manifests), *self.records]
        return {**files, **{manifest.path_of(self.root, name): None for name in names}}

    @property
    def all_paths(self) -> list[str]:
        """Absolute paths of its files and manifests."""
        own = [*(os.path.join(self.root, path) for path in self.files)]
        return [*own, *(manifest.path_of(self.root, one.name) for one in self.manifests)]


def newest_first(
    root: str, prefix: str | None = None, *, cache: dict[str, Manifest] | None = None
) -> Iterator[Checkpoint]:
    """The saved steps of `prefix` (of every prefix when None), those that were left behind (`format.abandoned`) last.
    Each step is read when the iterator reaches it.

    A manifest in `cache` is not read again; the others are added to it. Raises CheckpointUnavailable.
    """
    names = manifest.list_names(root)
    yield from assemble(root, names, prefix, cache={} if cache is None else cache)


def assemble(
    root: str,
    names: Collection[str],
    prefix: str | None = None,
    *,
    cache: dict[str, Manifest],
    mounts: MountSnapshot | None = None,
) -> Iterator[Checkpoint]:
    """As `newest_first`, of a directory that was listed already: `names`, beside the manifests."""
    left = abandoned.among(root, names)
    chosen = [entry for entry in manifest.manifests_among(names) if prefix in (None, entry.prefix)]
    current = {(entry.step, entry.prefix) for entry in chosen if entry.name not in left}
    chosen.sort(key=lambda e: ((e.step, e.prefix) in current, e.step, e.prefix), reverse=True)
    for (step, owner), group in groupby(chosen, key=lambda entry: (entry.step, entry.prefix)):
        checkpoint = _assemble_step(root, owner, step, group, cache, mounts)
        records = abandoned.records_among(owner, names) if left and (step, owner) in current else ()
        yield replace(checkpoint, records=tuple(records)) if records else checkpoint


def read_step(root: str, prefix: str, step: int) -> Checkpoint:
    """One step as it is now. A step whose manifests are gone is damaged. Raises CheckpointUnavailable."""
    entries = [entry for entry in manifest.list_manifests(root) if (entry.prefix, entry.step) == (prefix, step)]
    if not entries:
        return Checkpoint(root, prefix, step, (), "its manifest was removed")
    return _assemble_step(root, prefix, step, entries, {}, None)


def _assemble_step(
    root: str,
    prefix: str,
    step: int,
    entries: Iterable[ManifestEntry],
    cache: dict[str, Manifest],
    mounts: MountSnapshot | None,
) -> Checkpoint:
    manifests: list[Manifest] = []
    damage: str | None = None
    for entry in entries:
        try:
            if entry.name not in cache:
                cache[entry.name] = manifest.load(root, entry.name, mounts)
            manifests.append(cache[entry.name])
        except ManifestDamaged as error:
            damage = str(error)
    return Checkpoint(root, prefix, step, tuple(sorted(manifests, key=lambda one: one.order)), damage)
