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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from perdure.checkpoint import (
    checkpoints,
    durability,
    folder_parts,
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
from perdure.checkpoint.checkpoints import Checkpoint
from perdure.checkpoint.errors import CheckpointUnavailable, NoUsableCheckpoint
from perdure.checkpoint.farewell import Farewell
from perdure.checkpoint.group import Alone, Group
from perdure.checkpoint.keep import Keep
from perdure.checkpoint.loading import refused_all
from perdure.checkpoint.manifest import FileRecord
from perdure.checkpoint.save_dir import SaveDir, root_of
from perdure.checkpoint.saving import Series
from perdure.checkpoint.together import all_of, attempt, leads

logger = logging.getLogger("perdure.checkpoint")


@dataclass(frozen=True)
class Folder:
    """A whole checkpoint. `path` is absolute; `skipped`: (step, reason) of newer ones that were refused."""

    step: int
    path: str
    skipped: tuple[tuple[int, str], ...] = ()


class Folders:
    """Folders `<save_dir>/<prefix>-<step>`, one per checkpoint.

    `keep` as for a Checkpointer. `group`: the processes that write into one folder, on one machine or on several; all
    call the same methods.
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
        self._is_leader: bool | None = None

    def path_of(self, step: int) -> str:
        return os.path.join(self.root, f"{self._series.prefix}-{step}")

    @contextlib.contextmanager
    def saving(self, step: int, *, metrics: Mapping[str, float] | None = None) -> Iterator[str]:
        """The empty folder to write into; committed when the block ends, left uncommitted when it raises.

        Raises CheckpointUnavailable when the directory's mount is missing, CheckpointError as `commit`.
        """
        durability.require_mounted(self.root)
        path = self.path_of(step)
        if self._leads():
            second_look.refresh(self.root, [os.path.basename(path)])
            if self._group.rank == 0:
                self._uncommit(step)
            shutil.rmtree(path, ignore_errors=True)
            os.makedirs(path, exist_ok=True)
        self._group.share(f"folder-{self._series.prefix}-{step}", None)
        yield path
        self.commit(step, metrics=metrics)

    def commit(self, step: int, *, metrics: Mapping[str, float] | None = None) -> None:
        """Commit the folder of `step`, which its library has finished writing: all that any process wrote there. Once
        the machine is about to be taken, its upload is hurried and awaited as long as there is time, and how that ended
        is logged.

        Raises CheckpointError, in every process, when it is missing or empty, or one can not read or flush its files.
        """
        self._commits += 1
        path, topic = self.path_of(step), f"{self._series.prefix}-{step}-{self._commits}"
        doing = f"committing step {step} in {self.root}"
        folder, prefix = os.path.basename(path), self._series.prefix
        self._group.share(f"written-{topic}", None)
        found = folder_parts.records(self.root, folder, prefix, self._group, topic=topic, doing=doing)
        done = attempt(lambda: self._write_manifest(step, found, metrics or {}))
        all_of(self._group, f"committed-{topic}", done, doing=doing)
        if notice.preempted():
            saved = checkpoints.newest_first(self.root, self._series.prefix)
            self.farewell.hurry(self.root, step, [path for one in saved if one.step == step for path in one.all_paths])

    def _write_manifest(self, step: int, found: Sequence[FileRecord], metrics: Mapping[str, float]) -> None:
        if self._group.rank != 0:
            return
        known = memory.of(self.root)
        self._uncommit(step)
        committed = manifest.write(self.root, saving.manifest_of(self._series, step, found, metrics))
        known.recent.append(committed)
        known.manifests[committed.name] = committed
        self._forget_vanished(step, known)
        saving.after(self._series, committed, known)

    def _leads(self) -> bool:
        if self._is_leader is None:
            self._is_leader = leads(self._group, self.root)
        return self._is_leader

    def _uncommit(self, step: int) -> None:
        """Before a folder is written anew: what is half old and half new must not be believed."""
        for entry in manifest.entries(self.root):
            if (entry.prefix, entry.step) == (self._series.prefix, step):
                manifest.delete(self.root, entry.name)

    def _forget_vanished(self, step: int, known: memory.Memory) -> None:
        """Some libraries remove old folders themselves: a manifest without a folder is the trace of one of those."""
        uploading = {one.step for one in known.unseen}
        for step_of_it in {entry.step for entry in manifest.entries(self.root) if entry.prefix == self._series.prefix}:
            if step_of_it != step and step_of_it not in uploading and self._is_gone(step_of_it):
                self._uncommit(step_of_it)

    def _is_gone(self, step: int) -> bool:
        """Whether nothing is left of a folder; a mount that does not show it is asked twice."""
        if not os.path.exists(self.path_of(step)):
            second_look.take(checkpoints.at(self.root, self._series.prefix, step))
        return not os.path.exists(self.path_of(step))

    def newest(self, *, verify: str = samples.FULL) -> Folder | None:
        """The newest folder that is whole, every file of it verified, once on each machine; None when none was ever
        committed.

        `verify`: how closely: "full" (every byte), "sampled" or "size" (see `samples` for what each can miss).

        Raises, in every process, NoUsableCheckpoint when some were and all are broken, CheckpointUnavailable when they
        can not be read.
        """
        samples.checked(verify)
        durability.require_mounted(self.root)
        is_leader, bound, passed = self._leads(), None, dict[int, str]()
        second_look.refresh(self.root)
        while True:
            answer = self._search(bound, passed, verify) if is_leader else None
            topic = f"newest-{self._series.prefix}-{self._commits}-{bound}"
            said = [one for one in self._group.share(topic, answer) if one is not None]
            for one in said:
                if "unavailable" in one:
                    raise CheckpointUnavailable(one["unavailable"])
            steps = {one["step"] for one in said}
            for one in said:
                passed.update({int(step): str(reason) for step, reason in one["skipped"]})
            if len(steps) == 1 or None in steps:
                return self._answer(steps, passed)
            bound = min(steps)

    def _answer(self, steps: set[int | None], passed: Mapping[int, str]) -> Folder | None:
        skipped = tuple(sorted(passed.items(), reverse=True))
        if None not in steps:
            (step,) = steps
            assert step is not None
            newer = tuple(one for one in skipped if one[0] > step)
            journal.note(step, journal.LOADED, self.path_of(step))
            return Folder(step, self.path_of(step), newer)
        if skipped:
            raise NoUsableCheckpoint(refused_all(self.root, self._series.prefix, list(skipped)), skipped)
        if steps != {None}:
            raise CheckpointUnavailable(
                f"one machine sees no checkpoints in {self.root}, others do: its listing may be old. Nothing was "
                "loaded; start again when every machine sees the same directory."
            )
        return None

    def _search(self, bound: int | None, passed: Mapping[int, str], verify: str) -> dict[str, Any]:
        """The newest usable step that is not above `bound`, and what was skipped for it."""
        try:
            for believe in (True, False):
                skipped: list[tuple[int, str]] = []
                for found in checkpoints.newest_first(self.root, self._series.prefix):
                    if found.step in passed or (bound is not None and found.step > bound):
                        continue
                    reason = self._fault(found, believe=believe, verify=verify)
                    if reason is None:
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
