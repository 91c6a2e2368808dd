"""Checkpoints that are folders of files, written by any library: committed and verified like all others, and replaced
by an older one when damaged.

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
from dataclasses import dataclass, field, replace
from typing import Any

from perdure.checkpoint import preemption
from perdure.checkpoint.durability import journal, mounts
from perdure.checkpoint.errors import CheckpointUnavailable, NoUsableCheckpoint
from perdure.checkpoint.format import file_changes, manifest, sampling
from perdure.checkpoint.format.manifest import FileRecord
from perdure.checkpoint.format.save_dir import SaveDir, check_prefix, root_of
from perdure.checkpoint.load import directory_cache, lost_manifests, mount_refresh, saved_step
from perdure.checkpoint.load.function_load import all_refused_message
from perdure.checkpoint.load.saved_step import Checkpoint
from perdure.checkpoint.load.verify import find_damage, recheck, verify_and_mark
from perdure.checkpoint.ranks import folder_parts
from perdure.checkpoint.ranks.collective import capture, is_leader, raise_if_any_failed
from perdure.checkpoint.ranks.group import Group, SingleProcess
from perdure.checkpoint.save import finish_step
from perdure.checkpoint.save.final_save import FinalSave
from perdure.checkpoint.save.finish_step import Series
from perdure.checkpoint.save.retention.keep_rule import Keep, as_numbers, as_rule
from perdure.checkpoint.save.save_directory import SaveDirectory

logger = logging.getLogger("perdure.checkpoint")

# The beginnings of the names of folders that are only there while a step is saved anew.
_NEW, _OLD = ".tmp-new-", ".tmp-old-"


@dataclass(frozen=True)
class Folder:
    """A whole checkpoint."""

    step: int
    path: str  # absolute
    skipped: tuple[tuple[int, str], ...] = ()  # (step, reason) of newer ones that were refused


@dataclass(frozen=True)
class _SearchReport:
    """What one machine found: the newest usable step and the (step, reason) pairs refused before it, or why the
    directory cannot be read."""

    step: int | None = None
    skipped: Sequence[tuple[int, str]] = field(default_factory=list)
    unavailable: str = ""


class Folders:
    """Folders `<save_dir>/<prefix>-<step>`, one per checkpoint.

    `keep` is as for a Checkpointer. `group`: the processes that write into one folder, on one machine or on several.
    All of them call the same methods in the same order.
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
        self._series = Series(self.root, check_prefix(prefix), as_rule(keep), dict(metadata or {}))
        #: Steps that stay, whatever `keep` says: those that the program still needs.
        self.protected_steps = self._series.protected
        self._group: Group = group or SingleProcess()
        self._commits = 0
        self.final_save = FinalSave()
        self._is_leader: bool | None = None
        self._written_anew = ""  # the name of the folder in which a committed step is being saved anew

    def path_of(self, step: int) -> str:
        return os.path.join(self.root, f"{self._series.prefix}-{step}")

    @contextlib.contextmanager
    def saving(self, step: int, *, metrics: Mapping[str, float] | None = None) -> Iterator[str]:
        """The empty folder to write into. It is committed when the block ends, and left uncommitted when it raises.

        Raises CheckpointUnavailable when the directory's mount is missing, CheckpointError as `commit`.
        """
        directory, numbers = SaveDirectory.open(self.root), as_numbers(metrics)
        path = self.path_of(step)
        if self._group.world_size == 1 and not directory.is_on_mount and self._is_committed(directory, step):
            self._restore_replaced()
            yield from self._saving_anew(directory, step, numbers)
            return
        if self._leads():
            mount_refresh.refresh(self.root, [os.path.basename(path)], directory.mounts)
            if self._group.rank == 0:
                self._uncommit(directory, step)
            directory.record_beginning(self._series.prefix, step)
            shutil.rmtree(path, ignore_errors=True)
            os.makedirs(path, exist_ok=True)
        self._group.all_gather(f"folder-{self._series.prefix}-{step}", None)
        yield path
        self._commit(directory, step, numbers)

    def _saving_anew(self, directory: SaveDirectory, step: int, metrics: Mapping[str, float]) -> Iterator[str]:
        """As `saving`, of a step that is committed: interrupted at any point, its old or its new content counts."""
        path = self.path_of(step)
        new, old = (os.path.join(self.root, kind + os.path.basename(path)) for kind in (_NEW, _OLD))
        shutil.rmtree(new, ignore_errors=True)
        os.makedirs(new)
        self._written_anew = os.path.basename(new)
        try:
            yield new
        finally:
            self._written_anew = ""
        doing, prefix = f"committing step {step} in {self.root}", self._series.prefix
        self._commits += 1
        records = folder_parts.collect_records(
            directory, os.path.basename(new), prefix, self._group, topic=f"{prefix}-{step}-{self._commits}", doing=doing
        )
        named = [replace(one, path=f"{os.path.basename(path)}/{one.path.partition('/')[2]}") for one in records]
        with directory.cache.lock:
            directory.forget_listing()
            earlier = [one.name for one in directory.entries() if (one.prefix, one.step) == (prefix, step)]
            os.rename(path, old)  # from here until `old` is removed, `_restore_replaced` repairs an interruption
            os.rename(new, path)
            manifest.sync_directory(self.root)
            committed = directory.commit(finish_step.build_manifest(self._series, step, named, metrics))
            for name in earlier:
                directory.delete(name)
            finish_step.finish(self._series, committed, directory)
        shutil.rmtree(old, ignore_errors=True)

    def _restore_replaced(self) -> None:
        """If the process that replaced a folder was interrupted, have its old content count, or else the new one, and
        remove the other."""
        if self._group.world_size > 1:
            return
        beginning, unfinished = (f"{kind}{self._series.prefix}-" for kind in (_OLD, _NEW))
        for name in os.listdir(self.root) if os.path.isdir(self.root) else []:
            if name.startswith(unfinished) and name[len(unfinished) :].isdigit() and name != self._written_anew:
                shutil.rmtree(os.path.join(self.root, name), ignore_errors=True)
            if not name.startswith(beginning) or not name[len(beginning) :].isdigit():
                continue
            old, step = os.path.join(self.root, name), int(name[len(beginning) :])
            saved = saved_step.read_step(self.root, self._series.prefix, step)
            if find_damage(saved) is not None:
                shutil.rmtree(self.path_of(step), ignore_errors=True)
                os.rename(old, self.path_of(step))
                for one in saved.manifests:
                    if find_damage(replace(saved, manifests=(one,), damage=None)) is not None:
                        manifest.delete(self.root, one.name)
            shutil.rmtree(old, ignore_errors=True)

    def _is_committed(self, directory: SaveDirectory, step: int) -> bool:
        wanted = (self._series.prefix, step)
        return os.path.isdir(self.path_of(step)) and wanted in {(one.prefix, one.step) for one in directory.entries()}

    def commit(self, step: int, *, metrics: Mapping[str, float] | None = None) -> None:
        """Commit the folder of `step`, which its library has finished writing, with the files of all processes.

        Once the machine is about to be taken, the upload is given priority and awaited as long as time permits; the
        result is logged.

        Raises CheckpointError, in every process, when the folder is missing or empty, or when a process cannot read or
        flush its files.
        """
        self._commit(SaveDirectory(self.root), step, as_numbers(metrics))

    def _commit(self, directory: SaveDirectory, step: int, metrics: Mapping[str, float]) -> None:
        self._commits += 1
        path, topic = self.path_of(step), f"{self._series.prefix}-{step}-{self._commits}"
        doing = f"committing step {step} in {self.root}"
        folder, prefix = os.path.basename(path), self._series.prefix
        self._group.all_gather(f"written-{topic}", None)
        records = folder_parts.collect_records(directory, folder, prefix, self._group, topic=topic, doing=doing)
        done = capture(lambda: self._write_manifest(directory, step, records, metrics))
        raise_if_any_failed(self._group, f"committed-{topic}", done, doing=doing)
        if preemption.is_noticed():
            saved = [one for one in saved_step.newest_first(self.root, prefix) if one.step == step]
            files = {path: version for one in saved for path, version in one.file_versions.items()}
            self.final_save.upload_if_mounted(self.root, step, files)

    def _write_manifest(
        self, directory: SaveDirectory, step: int, records: Sequence[FileRecord], metrics: Mapping[str, float]
    ) -> None:
        if self._group.rank != 0:
            return
        with directory.cache.lock:
            directory.forget_listing()  # the user has written the folder since, which may have taken long
            self._uncommit(directory, step)
            committed = directory.commit(finish_step.build_manifest(self._series, step, records, metrics))
            self._delete_vanished(directory, step)
            finish_step.finish(self._series, committed, directory)

    def _leads(self) -> bool:
        if self._is_leader is None:
            self._is_leader = is_leader(self._group, self.root)
        return self._is_leader

    def _uncommit(self, directory: SaveDirectory, step: int) -> None:
        """Remove the manifests of `step`, so that a mixture of its old and new files never counts as a checkpoint."""
        for entry in directory.entries():
            if (entry.prefix, entry.step) == (self._series.prefix, step):
                directory.delete(entry.name)

    def _delete_vanished(self, directory: SaveDirectory, just_saved: int) -> None:
        """Remove the manifests of folders that are gone: some libraries remove old folders themselves."""
        uploading = {one.step for one in directory.cache.pending_upload}
        others = {entry.step for entry in directory.entries() if entry.prefix == self._series.prefix}
        for step in others - uploading - {just_saved}:
            if self._is_gone(step):
                self._uncommit(directory, step)

    def _is_gone(self, step: int) -> bool:
        """Whether nothing is left of a folder. A mount that does not show it is refreshed first."""
        if not os.path.exists(self.path_of(step)):
            recheck(saved_step.read_step(self.root, self._series.prefix, step))
        return not os.path.exists(self.path_of(step))

    def newest(self, *, verify: str = sampling.FULL) -> Folder | None:
        """The newest whole folder; None if none was ever committed. One process on each machine verifies its files.

        `verify`: "full" (every byte), "sampled" or "size"; `format.sampling` says what each can miss.

        Raises, in every process, NoUsableCheckpoint when some were committed and all are damaged, CheckpointUnavailable
        when they cannot be read.
        """
        sampling.check_mode(verify)
        mounts.require_mounted(self.root)
        leads, bound, refused = self._leads(), None, dict[int, str]()
        mount_refresh.refresh(self.root)
        directory_cache.for_directory(self.root).was_searched = True
        self._restore_replaced()
        while True:
            report = vars(self._search(bound, refused, verify)) if leads else None
            topic = f"newest-{self._series.prefix}-{self._commits}-{bound}"
            reports = [_SearchReport(**one) for one in self._group.all_gather(topic, report) if one is not None]
            if unavailable := [one.unavailable for one in reports if one.unavailable]:
                raise CheckpointUnavailable(unavailable[0])
            for one in reports:
                refused.update({int(step): str(reason) for step, reason in one.skipped})
            steps = {one.step for one in reports}
            usable = [step for step in steps if step is not None]
            if len(steps) == 1 or None in steps:
                return self._conclude(steps, refused)
            bound = min(usable)

    def _conclude(self, steps: set[int | None], refused: Mapping[int, str]) -> Folder | None:
        skipped = tuple(sorted(refused.items(), reverse=True))
        if None not in steps:
            (step,) = steps
            assert step is not None
            newer = tuple(one for one in skipped if one[0] > step)
            journal.record(step, journal.LOADED, self.path_of(step))
            return Folder(step, self.path_of(step), newer)
        if skipped:
            raise NoUsableCheckpoint(all_refused_message(self.root, self._series.prefix, list(skipped)), skipped)
        if steps != {None}:
            raise CheckpointUnavailable(
                f"one machine sees no checkpoints in {self.root}, others do: its listing may be stale. Nothing was "
                "loaded; start again when every machine sees the same directory."
            )
        if self._leads():
            self.record_beginning()
        return None

    def record_beginning(self) -> None:
        """Record that nothing was saved so far, for libraries that write their folders before `commit` is called:
        without this, a folder of a killed save would be taken for one whose manifest was lost. Best effort."""
        if not any(map(self._is_own, os.listdir(self.root) if os.path.isdir(self.root) else [])):
            lost_manifests.record_beginning(self.root, self._series.prefix)

    def _is_own(self, name: str) -> bool:
        is_named = name.startswith(f"{self._series.prefix}-") and step_of(name) is not None
        return is_named and bool(file_changes.scan(os.path.join(self.root, name)))

    def _search(self, bound: int | None, refused: Mapping[int, str], verify: str) -> _SearchReport:
        """Look for the newest usable step that is not above `bound`."""
        try:
            for trust_marks in (True, False):
                skipped: list[tuple[int, str]] = []
                for candidate in saved_step.newest_first(self.root, self._series.prefix):
                    if candidate.step in refused or (bound is not None and candidate.step > bound):
                        continue
                    reason = self._find_damage(candidate, trust_marks=trust_marks, verify=verify)
                    if reason is None:
                        return _SearchReport(candidate.step, skipped)
                    logger.warning("skipping step %d in %s: %s", candidate.step, self.root, reason)
                    skipped.append((candidate.step, reason))
            if not skipped and not refused:
                lost_manifests.refuse(self.root, self._series.prefix, self._is_own)
            return _SearchReport(None, skipped)
        except CheckpointUnavailable as error:
            return _SearchReport(unavailable=str(error))

    def _find_damage(self, candidate: Checkpoint, *, trust_marks: bool, verify: str) -> str | None:
        """As `verify_and_mark`. Files that were added after the commit, such as results of an evaluation, are reported
        in a warning: they are not verified."""
        reason = verify_and_mark(candidate, trust_marks=trust_marks, verify=verify)
        if reason is None:
            path = self.path_of(candidate.step)
            present = {f"{os.path.basename(path)}/{name}" for name in file_changes.scan(path)}
            if added := sorted(present - candidate.files.keys()):
                logger.warning(
                    "step %d in %s holds files that were added after its commit and are not verified: %s%s",
                    *(candidate.step, self.root, ", ".join(added[:3]), ", …" if len(added) > 3 else ""),
                )
        return reason


def step_of(path: str) -> int | None:
    """The step that a folder's name ends in, or None."""
    match = re.search(r"-(\d+)$", path.rstrip("/"))
    return int(match.group(1)) if match else None
