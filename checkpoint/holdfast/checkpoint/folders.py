"""Checkpoints that are folders of files, written by whatever library: committed, verified and fallen back from like
all others.

    folders = Folders("/checkpoints")
    with folders.saving(step) as path:
        library.save(state, path)
    ...
    newest = folders.newest()
    state = library.load(newest.path) if newest else initial()
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from holdfast.checkpoint import (
    checkpoints,
    digest,
    durability,
    first,
    journal,
    manifest,
    marks,
    memory,
    notice,
    samples,
    saving,
    second_look,
    snapshot,
)
from holdfast.checkpoint.checkpoints import Checkpoint
from holdfast.checkpoint.errors import CheckpointError, CheckpointUnavailable, NoUsableCheckpoint
from holdfast.checkpoint.farewell import Farewell
from holdfast.checkpoint.group import Alone, Group
from holdfast.checkpoint.keep import Keep
from holdfast.checkpoint.loading import refused_all
from holdfast.checkpoint.manifest import FileRecord
from holdfast.checkpoint.save_dir import SaveDir, root_of
from holdfast.checkpoint.saving import Series

logger = logging.getLogger("holdfast.checkpoint")

_READERS = 4


@dataclass(frozen=True)
class Folder:
    """A whole checkpoint. `path` is absolute; `skipped`: (step, reason) of newer ones that were refused."""

    step: int
    path: str
    skipped: tuple[tuple[int, str], ...] = ()


class Folders:
    """Folders `<save_dir>/<prefix>-<step>`, one per checkpoint.

    `keep` as for a Checkpointer. `group`: the processes that write into one folder; all call the same methods.
    """

    def __init__(
        self,
        save_dir: SaveDir,
        *,
        prefix: str = "checkpoint",
        keep: int | Keep | None = 5,
        metadata: Mapping[str, Any] | None = None,
        group: Group | None = None,
    ) -> None:
        self.root = root_of(save_dir)
        rule = Keep(keep) if isinstance(keep, int) else keep
        self._series = Series(self.root, prefix, rule, dict(metadata or {}))
        self._group: Group = group or Alone()
        self._commits = 0
        self.farewell = Farewell()

    def path_of(self, step: int) -> str:
        return os.path.join(self.root, f"{self._series.prefix}-{step}")

    @contextlib.contextmanager
    def saving(self, step: int, *, metrics: Mapping[str, float] | None = None) -> Iterator[str]:
        """The empty folder to write into; committed when the block ends, left uncommitted when it raises.

        Raises CheckpointUnavailable when the directory's mount is missing, CheckpointError as `commit`.
        """
        durability.require_mounted(self.root)
        path = self.path_of(step)
        if self._group.rank == 0:
            self._uncommit(step)
            shutil.rmtree(path, ignore_errors=True)
            os.makedirs(path)
        self._group.share(f"folder-{self._series.prefix}-{step}", None)
        yield path
        self.commit(step, metrics=metrics)

    def commit(self, step: int, *, metrics: Mapping[str, float] | None = None) -> None:
        """Commit the folder of `step`, which its library has finished writing. Once the machine is about to be taken,
        its upload is hurried and awaited as long as there is time, and how that ended is logged.

        Raises CheckpointError when it is missing or empty, or can not be read or flushed.
        """
        self._commits += 1
        self._group.share(f"written-{self._series.prefix}-{step}-{self._commits}", None)
        if self._group.rank == 0:
            self._commit(step, metrics or {})
        self._group.share(f"committed-{self._series.prefix}-{step}-{self._commits}", None)
        if notice.preempted():
            saved = checkpoints.newest_first(self.root, self._series.prefix)
            self.farewell.hurry(self.root, step, [path for one in saved if one.step == step for path in one.all_paths])

    def _commit(self, step: int, metrics: Mapping[str, float]) -> None:
        path, known = self.path_of(step), memory.of(self.root)
        try:
            found = snapshot.take(path) if os.path.isdir(path) else {}
            if not found:
                raise CheckpointError(f"committing step {step}: nothing was written to {path}")
            with ThreadPoolExecutor(_READERS) as readers:
                records = list(readers.map(lambda name: self._record(path, name), sorted(found)))
            for folder in {os.path.dirname(os.path.join(path, name)) for name in found} | {self.root}:
                manifest.sync_directory(folder)
            first.upload(self.root, self._series.prefix, [os.path.join(path, name) for name in found])
            self._uncommit(step)
            committed = manifest.write(self.root, saving.manifest_of(self._series, step, records, metrics))
        except OSError as error:
            raise CheckpointError(f"committing step {step} in {path}: {error}. It does not count as saved.") from error
        known.recent.append(committed)
        known.manifests[committed.name] = committed
        self._forget_vanished(step)
        saving.after(self._series, committed, known)

    def _record(self, path: str, name: str) -> FileRecord:
        absolute, algorithm = os.path.join(path, name), digest.preferred_algorithm()
        size, content = os.path.getsize(absolute), durability.where_to_read(absolute)
        found = digest.of_file(content, algorithm, length=size, sync=True)
        sample = samples.of_file(content, algorithm, size)
        return FileRecord(f"{os.path.basename(path)}/{name}", size, found, algorithm, sample)

    def _uncommit(self, step: int) -> None:
        """Before a folder is written anew: what is half old and half new must not be believed."""
        for entry in manifest.entries(self.root):
            if (entry.prefix, entry.step) == (self._series.prefix, step):
                manifest.delete(self.root, entry.name)

    def _forget_vanished(self, step: int) -> None:
        """Some libraries remove old folders themselves: a manifest without a folder is the trace of one of those."""
        for entry in manifest.entries(self.root):
            gone = not os.path.exists(self.path_of(entry.step))
            if entry.prefix == self._series.prefix and entry.step != step and gone:
                manifest.delete(self.root, entry.name)

    def newest(self, *, verify: str = samples.FULL) -> Folder | None:
        """The newest folder that is whole, every file of it verified; None when none was ever committed.

        `verify`: how closely: "full" (every byte), "sampled" or "size" (see `samples` for what each can miss).

        Raises NoUsableCheckpoint when some were and all are broken, CheckpointUnavailable when they can not be read.
        """
        samples.checked(verify)
        durability.require_mounted(self.root)
        second_look.refresh(self.root)
        answer = self._search(verify) if self._group.rank == 0 else None
        said = self._group.share(f"newest-{self._series.prefix}-{self._commits}", answer)[0]
        if "unavailable" in said:
            raise CheckpointUnavailable(said["unavailable"])
        skipped = tuple((int(step), str(reason)) for step, reason in said["skipped"])
        if said["step"] is not None:
            return Folder(said["step"], self.path_of(said["step"]), skipped)
        if skipped:
            raise NoUsableCheckpoint(refused_all(self.root, self._series.prefix, list(skipped)), skipped)
        return None

    def _search(self, verify: str) -> dict[str, Any]:
        try:
            for believe in (True, False):
                skipped: list[tuple[int, str]] = []
                for found in checkpoints.newest_first(self.root, self._series.prefix):
                    reason = self._fault(found, believe=believe, verify=verify)
                    if reason is None:
                        journal.note(found.step, journal.LOADED, self.path_of(found.step))
                        return {"step": found.step, "skipped": skipped}
                    logger.warning("skipping step %d in %s: %s", found.step, self.root, reason)
                    skipped.append((found.step, reason))
            return {"step": None, "skipped": skipped}
        except CheckpointUnavailable as error:
            return {"unavailable": str(error)}

    def _fault(self, found: Checkpoint, *, believe: bool, verify: str) -> str | None:
        """As `marks.fault`; also a file that was not there when the folder was committed is a fault."""
        reason = marks.fault(found, believe=believe, verify=verify)
        if reason is None:
            path = self.path_of(found.step)
            strange = {f"{os.path.basename(path)}/{name}" for name in snapshot.take(path)} - found.files.keys()
            if strange:
                reason = f"{sorted(strange)[0]} was written after it was committed"
        return reason


def step_of(path: str) -> int | None:
    """The step that a folder's name ends in, or None."""
    found = re.search(r"-(\d+)$", path.rstrip("/"))
    return int(found.group(1)) if found else None
