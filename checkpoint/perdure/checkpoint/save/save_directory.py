"""`SaveDirectory`: the view that one save has of its directory. Made once at the beginning of the save and passed down.

The mounts are read once. The manifests are listed once, and once more right before anything is deleted on the strength
of the listing (`forget_listing`), because another process may have committed a manifest while the user's function ran.
What this process commits and deletes itself is entered into the listing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

from perdure.checkpoint.durability import status
from perdure.checkpoint.durability.file_version import Versions
from perdure.checkpoint.durability.mounts import MountSnapshot
from perdure.checkpoint.format import abandoned, manifest
from perdure.checkpoint.format.file_changes import OWN_DIR
from perdure.checkpoint.format.manifest import Manifest, ManifestEntry
from perdure.checkpoint.load import directory_cache, saved_step
from perdure.checkpoint.load.saved_step import Checkpoint


class GoingBack(NamedTuple):
    """A load of another step than the newest."""

    step: int
    may_look: bool  # the program had loaded or saved before: it may go on with what it has in memory

    @classmethod
    def after(cls, step: int | None, before: GoingBack | None, used: bool) -> GoingBack | None:
        """After a load of `step`. `before`: the load before, if that was one too and nothing was saved since."""
        is_same = before is not None and before.step == step
        return None if step is None else before if is_same else cls(step, used)


class SaveDirectory:
    """The directory `root` (absolute) during one save."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.cache = directory_cache.for_directory(root)
        self._is_listed = False

    @classmethod
    def open(cls, root: str) -> SaveDirectory:
        """The directory, once its mount is known to be there. Raises CheckpointUnavailable."""
        directory = cls(root)
        directory.mounts.require_mounted(root)
        return directory

    @cached_property
    def mounts(self) -> MountSnapshot:
        """The mounts of this node, read at the first use. Raises CheckpointUnavailable."""
        return MountSnapshot()

    @cached_property
    def is_on_mount(self) -> bool:
        """Whether it lies on a bucket's mount, where files are uploaded some time after they were written."""
        return self.mounts.find(self.root) is not None

    # --- manifests: one listing -------------------------------------------------------------------------------

    def entries(self) -> list[ManifestEntry]:
        """Every manifest, newest step first. Raises CheckpointUnavailable when the directory cannot be read."""
        return manifest.manifests_among(self._names())

    def unfinished_manifests(self) -> list[str]:
        """The paths, relative to the directory, of manifests that are being written or that a kill has left. Raises
        CheckpointUnavailable when the directory cannot be read."""
        return [f"{OWN_DIR}/{name}" for name in manifest.temporaries_among(self._names())]

    def forget_listing(self) -> None:
        """The next use lists the manifests again, and sees what other processes have committed."""
        self._is_listed = False

    def has_series(self, prefix: str) -> bool:
        """Whether there is a manifest of `prefix`. Raises CheckpointUnavailable."""
        return any(entry.prefix == prefix for entry in self.entries())

    def checkpoints(self, prefix: str | None = None) -> Iterator[Checkpoint]:
        """As `saved_step.newest_first`. Manifests that this process has read or written are not read again."""
        return saved_step.assemble(self.root, self._names(), prefix, cache=self.cache.manifests, mounts=self.mounts)

    def commit(self, new: Manifest) -> Manifest:
        """Write `new` under a name of its own; returns it with that name. Raises OSError."""
        committed = manifest.write(self.root, new)
        self.cache.names.add(committed.name)
        self.cache.manifests[committed.name] = committed
        self.cache.recent.append(committed)
        return committed

    def abandon_newer(self, prefix: str, back: GoingBack, saving: int) -> list[str]:
        """Before a save of the step `saving`, of a program that went back on purpose: record that later steps than the
        loaded one are left behind. Returns the paths that it wrote.

        If the program may have loaded that step only to look at it, nothing is recorded unless a later step is as late
        as `saving`. Raises OSError and CheckpointUnavailable.
        """
        self.forget_listing()
        left, own = abandoned.among(self.root, self._names()), (one for one in self.entries() if one.prefix == prefix)
        newer = [one for one in own if one.step > back.step and one.name not in left]
        if not newer or (back.may_look and all(one.step < saving for one in newer)):
            return []
        name = abandoned.write(self.root, prefix, saving, [one.name for one in newer], self._names())
        self.cache.names.add(name)
        return [manifest.path_of(self.root, name)]

    def delete(self, name: str) -> None:
        """Remove a manifest, or the record of a started save. Succeeds if it is gone already. Raises OSError."""
        manifest.delete(self.root, name)
        self.cache.names.discard(name)
        self.cache.manifests.pop(name, None)

    def mark_started(self, prefix: str, step: int) -> None:
        """Record that a save has begun (`manifest.mark_started`). Raises OSError."""
        self.cache.names.add(manifest.mark_started(self.root, prefix, step))

    def delete_started(self, prefix: str) -> None:
        """Remove every record of a started save of `prefix`. Raises OSError and CheckpointUnavailable."""
        for name in manifest.started_among(self._names()):
            if prefix in manifest.started_prefixes([name]):
                self.delete(name)

    def record_beginning(self, prefix: str, step: int) -> None:
        """Before the first save of a series: record that it has begun. Raises OSError and CheckpointUnavailable."""
        if not self.has_series(prefix) and prefix not in manifest.started_prefixes(self._names()):
            self.mark_started(prefix, step)

    def sync(self) -> None:
        """Flush the deletion of manifests to the disk. Raises OSError."""
        manifest.sync_directory(os.path.join(self.root, OWN_DIR))

    def _names(self) -> tuple[str, ...]:
        if not self._is_listed:
            self.cache.names = set(manifest.list_names(self.root))
            self._is_listed = True
        return tuple(self.cache.names)

    # --- mounts: one read ----------------------------------------------------------------------------------

    def is_durable(self, paths: Versions) -> bool | None:
        return status.is_durable(paths, self.mounts)

    def wait_durable(self, paths: Versions, *, timeout_s: float) -> bool | None:
        return status.wait_durable(paths, timeout_s=timeout_s, mounts=self.mounts)

    def readable_path(self, path: str) -> str:
        return status.readable_path(path, self.mounts)
