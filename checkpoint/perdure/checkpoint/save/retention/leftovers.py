"""Removes the parts that saves have left behind without becoming a checkpoint, on a mount also from the bucket.

A save that was killed leaves an unfinished part, or finished ones that no manifest lists. Nothing of a save that may
still be running, in any process, is removed:

* an unfinished part goes once its writer is known to be dead (`Writer.is_dead`), or has not written for an hour;
* a finished part goes an hour after it was written. Processes wait for each other for 10 minutes at most
  (`ranks.group.TIMEOUT_S`), so a save whose last part is that old has failed;
* a file that parts refer to goes once no manifest has listed it for an hour, as far as this process has seen: a save
  that is not committed yet may refer to it, however old it is.

Parts of all ranks together could also be a checkpoint whose manifest was lost in a copy of the directory. They are left
to the user (`lost_manifests`), unless an older manifest shows that there were manifests when they were written. So are
files that parts refer to, unless this process has seen a manifest that lists them.

All times are those of files in one directory: they are compared with that of the manifest that was just written.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Iterable, Iterator

from perdure.checkpoint.errors import CheckpointUnavailable
from perdure.checkpoint.format import manifest, part_names
from perdure.checkpoint.format.part_names import Part
from perdure.checkpoint.save.save_directory import SaveDirectory

logger = logging.getLogger("perdure.checkpoint")

ABANDONED_S = 3600.0
_INTERVAL_S = 600.0  # between two looks of a process


class Leftovers:
    """Those of one series. One object per process, because it remembers what it has seen."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._looked_at = float("-inf")  # monotonic seconds
        self._uncommitted: set[str] = set()  # finished parts that were certainly never committed
        self._were_listed: set[str] = set()  # files that parts refer to, and that a manifest has listed
        self._unlisted_since: dict[str, float] = {}  # monotonic seconds since when no manifest lists one of them

    def remove(self, directory: SaveDirectory, committed: str | None) -> list[str]:
        """Remove what is left behind; returns the names. Looks at most every ten minutes, and fails no save.

        `committed`: the name of the manifest that this process has just written; None in a process that wrote none,
        which removes unfinished parts of dead writers alone.
        """
        if time.monotonic() - self._looked_at < _INTERVAL_S:
            return []
        self._looked_at = time.monotonic()
        removed = []
        try:
            names = os.listdir(directory.root)
            now_s = None if committed is None else os.stat(manifest.path_of(directory.root, committed)).st_mtime
            for name in [*self._unfinished(directory, names, now_s), *self._finished(directory, names, now_s)]:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(os.path.join(directory.root, name))
                    removed.append(name)
        except (OSError, CheckpointUnavailable) as error:
            logger.warning("removing what earlier saves have left in %s: %s", directory.root, error)
        if removed:
            logger.info("removed %d files of saves that were never committed from %s", len(removed), directory.root)
        return removed

    def _unfinished(self, directory: SaveDirectory, names: Iterable[str], now_s: float | None) -> Iterator[str]:
        observer = part_names.Writer.current()
        for name in names:
            writer = part_names.parse_temporary(name, self._prefix)
            if writer is None:
                continue
            is_here = bool(writer.machine) and writer.machine == observer.machine  # the process table is right
            if writer.is_dead(observer) or (not is_here and _is_abandoned(os.path.join(directory.root, name), now_s)):
                yield name
        for path in directory.unfinished_manifests():
            if _is_abandoned(os.path.join(directory.root, path), now_s):
                yield path

    def _finished(self, directory: SaveDirectory, names: Iterable[str], now_s: float | None) -> Iterator[str]:
        if now_s is None:
            return
        parts = self._unlisted(directory, names)
        began_s = self._oldest_manifest_s(directory) if parts else 0.0
        for name, part in parts.items():
            path = os.path.join(directory.root, name)
            if not _has_all_ranks(parts, part) or _mtime_s(path) > began_s:
                self._uncommitted.add(name)
            if name in self._uncommitted and _is_abandoned(path, now_s):
                yield name
        yield from self._unused_referred(directory, names)

    def _unused_referred(self, directory: SaveDirectory, names: Iterable[str]) -> Iterator[str]:
        referred = {name for name in names if part_names.is_referred(name, self._prefix)}
        listed = self._listed(directory) if referred else set()
        if listed is None:
            self._unlisted_since = {}
            return
        self._were_listed = referred & (self._were_listed | listed)
        began_s, now = self._oldest_manifest_s(directory), time.monotonic()
        self._unlisted_since = {
            name: self._unlisted_since.get(name, now)
            for name in referred - listed
            if name in self._were_listed or _mtime_s(os.path.join(directory.root, name)) > began_s
        }
        for name, since in self._unlisted_since.items():
            if now - since > ABANDONED_S:
                yield name

    def _unlisted(self, directory: SaveDirectory, names: Iterable[str]) -> dict[str, Part]:
        """Name → what it tells, for every finished part that no manifest lists."""
        named = ((name, part_names.parse_part(name, self._prefix)) for name in names)
        parts = {name: part for name, part in named if part is not None}
        if not self._has_doubtful(directory, parts.values()):
            return {}
        listed = self._listed(directory)
        return {} if listed is None else {name: part for name, part in parts.items() if name not in listed}

    @staticmethod
    def _listed(directory: SaveDirectory) -> set[str] | None:
        """The files that manifests list; None if a manifest cannot be read, which may list any."""
        directory.forget_listing()  # another process may have committed them
        checkpoints = list(directory.checkpoints())
        return None if any(one.damage for one in checkpoints) else {path for one in checkpoints for path in one.files}

    def _has_doubtful(self, directory: SaveDirectory, parts: Iterable[Part]) -> bool:
        """Whether there may be unlisted parts, by the names alone: reading all manifests may take long."""
        committed = {entry.step for entry in directory.entries() if entry.prefix == self._prefix}
        of_steps: dict[int, list[Part]] = {}
        for part in parts:
            of_steps.setdefault(part.step, []).append(part)
        return any(step not in committed or len(those) > those[0].world_size for step, those in of_steps.items())

    def _oldest_manifest_s(self, directory: SaveDirectory) -> float:
        names = (entry.name for entry in directory.entries() if entry.prefix == self._prefix)
        times = [_mtime_s(manifest.path_of(directory.root, name)) for name in names]
        return min(times, default=float("inf"))


def _has_all_ranks(parts: dict[str, Part], one: Part) -> bool:
    ranks = {part.rank for part in parts.values() if (part.step, part.world_size) == (one.step, one.world_size)}
    return ranks == set(range(one.world_size))


def _is_abandoned(path: str, now_s: float | None) -> bool:
    return now_s is not None and now_s - _mtime_s(path) > ABANDONED_S


def _mtime_s(path: str) -> float:
    """When the file was last written, in epoch seconds; infinite for one that is gone."""
    try:
        return os.stat(path).st_mtime
    except FileNotFoundError:
        return float("inf")
