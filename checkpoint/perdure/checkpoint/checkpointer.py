"""`Checkpointer`: saves a state and loads the newest whole one, in one line each.

A save here (`_commit`) writes one part per process; all of them agree before `save.finish_step` makes it a checkpoint.
Which step all processes load is decided by `ranks.agreed_load`.

A training loop:

    with Checkpointer("/checkpoints", keep=3, asynchronous=True) as checkpointer:
        state = checkpointer.load() or {"step": 0, "model": initial()}
        for step in range(state["step"] + 1, steps + 1):
            train(state)
            if checkpointer.should_save(step):
                checkpointer.save(step, {"step": step, "model": model, "optimizer": optimizer})
            if checkpointer.preempted():
                break
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Any

from perdure.checkpoint import preemption
from perdure.checkpoint.durability import journal, mounts, status
from perdure.checkpoint.durability.pending_upload import PendingUpload
from perdure.checkpoint.errors import CheckpointError
from perdure.checkpoint.format import manifest, sampling
from perdure.checkpoint.format.manifest import FileRecord, Manifest
from perdure.checkpoint.format.save_dir import SaveDir, check_prefix, root_of
from perdure.checkpoint.load import listing, mount_refresh, saved_step
from perdure.checkpoint.load.function_load import LoadResult
from perdure.checkpoint.load.listing import StepInfo
from perdure.checkpoint.load.saved_step import Checkpoint
from perdure.checkpoint.load.state_reader import StateInto, new_reader
from perdure.checkpoint.ranks.agreed_load import Choice, load_agreed_step
from perdure.checkpoint.ranks.agreed_save import AgreedSave
from perdure.checkpoint.ranks.collective import Outcome, capture, gather_or_raise, raise_if_any_failed
from perdure.checkpoint.ranks.group import Group, PeersMissing, TorchGroup, detect_group
from perdure.checkpoint.save import finish_step, first_upload
from perdure.checkpoint.save.background import Background
from perdure.checkpoint.save.final_save import FinalSave
from perdure.checkpoint.save.finish_step import Series
from perdure.checkpoint.save.handle import SaveHandle
from perdure.checkpoint.save.interval import SaveInterval
from perdure.checkpoint.save.parts.part_writer import PartState
from perdure.checkpoint.save.parts.split_writer import new_writer
from perdure.checkpoint.save.parts.staging import Staging
from perdure.checkpoint.save.retention.keep_rule import Keep, as_numbers, as_rule
from perdure.checkpoint.save.retention.leftovers import Leftovers
from perdure.checkpoint.save.save_directory import GoingBack, SaveDirectory
from perdure.checkpoint.state.pytree import require_no_nodes

logger = logging.getLogger("perdure.checkpoint")


@dataclass(frozen=True)
class _PendingSave:
    """One save of this process's part, ready to be written."""

    step: int
    state: PartState | None  # None if this rank writes nothing
    metrics: Mapping[str, float]
    began: float  # monotonic seconds
    directory: SaveDirectory


class Checkpointer:
    """Checkpoints of one program in one directory. Not for use by several threads.

    `keep`: how many to keep, a rule (`Keep`), or None to keep all. Surplus checkpoints are removed in the background.
    `prefix` names a series; series in one directory are kept and loaded separately. `metadata` is stored with every
    checkpoint, as JSON.

    `asynchronous`: `save` copies the state and returns, and the rest happens in the background. One save is in flight
    at a time. Its failure is raised by the next call or by `close`, or logged at exit.

    `every`: the interval at which `should_save` returns True, in steps, or "auto" (the default), which derives it from
    the measured cost of a save and the measured rate of interruptions. `every_s`: the interval in seconds.
    `total_steps`: the last step of the run, if it is known. It is always saved, and the controller derives from it how
    much work is left.

    With several processes (those of `process_group`, else all of torch.distributed if it is initialised, else RANK and
    WORLD_SIZE) all call the same methods in the same order. `sharded`: each process saves and loads its own part;
    otherwise rank 0 saves for all. `replicated`: the others have the same state, and help rank 0 to write what it has,
    each an equal share of the large arrays. A checkpoint is committed when every part is there. All processes load the
    same step, one that all of them can verify.

    `reuse_unchanged`: steps share a file with large arrays that do not change, such as frozen layers, instead of
    writing them again. If that file is damaged, all of these steps are. It needs the package `xxhash`.

    Raises ValueError for invalid arguments.
    """

    def __init__(
        self,
        save_dir: SaveDir,
        *,
        keep: int | Keep | None = 5,
        asynchronous: bool = False,
        prefix: str = "checkpoint",
        metadata: Mapping[str, Any] | None = None,
        every: int | str = "auto",
        every_s: float | None = None,
        total_steps: int | None = None,
        sharded: bool = False,
        replicated: bool = False,
        reuse_unchanged: bool = False,
        group: Group | None = None,
        process_group: Any = None,
    ) -> None:
        if not isinstance(every, int) and every != "auto":
            raise ValueError(f'every is a number of steps or "auto", not {every!r}; for seconds use every_s')
        self._root = root_of(save_dir)
        rule, prefix = as_rule(keep), check_prefix(prefix)
        self._series = Series(self._root, prefix, rule, dict(metadata or {}), saves_whole_step=True)
        self._asynchronous = asynchronous
        self._sharded = sharded
        if process_group is not None:
            if group is not None:
                raise ValueError("give either group or process_group, not both")
            group = TorchGroup(process_group=process_group)
        self._group = detect_group(self._root) if group is None else group
        kinds = {"sharded": sharded, "replicated": replicated, "reuses": reuse_unchanged}
        self._writer = new_writer(self._root, prefix, self._group, **kinds)
        self._final_save = FinalSave()
        self._interval = SaveInterval(
            every_steps=every if isinstance(every, int) else None, every_s=every_s, total_steps=total_steps
        )
        if total_steps is not None:
            journal.set_total_steps(_validate_step(total_steps))
        self._staging = Staging()
        self._background = Background()
        self._upload = PendingUpload()
        self._agreed = AgreedSave(prefix, self._group, self._interval, self._final_save, self._upload)
        self._saves = 0
        self._saved_step: int | None = None
        self._went_back_to: GoingBack | None = None
        self._written: list[str] = []  # this process's files of the last save
        self._upload_wait_s = 0.0  # how long the last save waited for the bucket
        self._leftovers = Leftovers(prefix)
        self.last_result: LoadResult | None = None

    # --- saving -------------------------------------------------------------------------------------------

    def save(
        self, step: int, state: Any, *, metrics: Mapping[str, float] | None = None, wait: bool | None = None
    ) -> SaveHandle[Manifest | None]:
        """Commit `state` as the checkpoint of `step` (an int, 0 or more).

        `wait`: whether to return only once the step is committed; None: unless saves are `asynchronous`. The returned
        handle has `result(timeout)`, which waits for the commit, and `durable`.

        `state`: dicts, lists and tuples of numbers, strings and arrays (NumPy, PyTorch, JAX). An object with
        `state_dict` is saved as what that returns. `metrics`: numbers that `Keep(best=…)` may choose by.

        Raises UnsupportedValue (a TypeError) for anything else, CheckpointError when the commit failed, and
        CheckpointUnavailable when the directory's mount is missing or a process does not respond. If saves are
        asynchronous, it also raises the failure of the previous save.

        Once the machine is about to be taken, a save is no longer asynchronous: its upload is given priority and
        awaited as long as time permits, and the result is logged.
        """
        self._background.wait()
        began = time.monotonic()
        directory = SaveDirectory.open(self._root)
        step, numbers, prefix = _validate_step(step), as_numbers(metrics), self._series.prefix
        directory.cache.enter_saver(prefix, self, step)
        is_asynchronous = self._asynchronous if wait is None else not wait
        part: PartState | None = None
        if self._writer.writes:
            part = self._writer.take(state, self._staging if is_asynchronous else None)
        pending = _PendingSave(step, part, numbers, began, directory)
        handle: SaveHandle[Manifest | None] = SaveHandle(step, partial(listing.is_durable, self._root, prefix, step))
        if is_asynchronous:
            self._background.start(lambda: self._finish(pending, handle.run(lambda: self._commit(pending))), handle)
        else:
            committed = handle.run(lambda: self._commit(pending))
            self._background.start(lambda: self._finish(pending, committed), handle)
        self._saved_step = step
        self._interval.record_save(time.monotonic() - began - (0.0 if is_asynchronous else self._upload_wait_s))
        if preemption.is_noticed():
            # Each process uploads its own files: a mount on another machine cannot be controlled from here.
            self._background.wait()
            self._final_save.upload_if_mounted(self._root, self._saved_step, self._written)
        return handle

    def _commit(self, pending: _PendingSave) -> Manifest | None:
        """Write the part and commit the step; returns the manifest in the process that wrote it."""
        self._saves += 1
        topic = f"save-{self._series.prefix}-{pending.step}-{self._saves}"
        doing = f"saving step {pending.step} in {self._root}"
        with pending.directory.cache.lock:
            parts = self._gather_parts(topic, capture(lambda: self._write_part(pending)), doing)
            records = [record for part in parts for record in part]
            done = capture(lambda: self._write_manifest(pending, records))
            raise_if_any_failed(self._group, f"{topic}-committed", done, doing=doing)
            self._writer.commit()
        took_s = time.monotonic() - pending.began - self._upload_wait_s
        self._interval.record_busy(took_s)
        self._final_save.commit_s = took_s
        self._upload.begin(self._written if pending.directory.is_on_mount else ())
        return done.value

    def _gather_parts(self, topic: str, mine: Outcome[list[FileRecord]], doing: str) -> list[list[FileRecord]]:
        try:
            return gather_or_raise(
                self._group,
                topic,
                mine,
                doing=doing,
                encode=lambda records: [vars(record) for record in records or ()],
                decode=lambda rows: [FileRecord(**row) for row in rows],
            )
        except CheckpointError as error:
            if not isinstance(error, PeersMissing):  # otherwise it is not known whether the others go on
                self._writer.discard()
            raise

    def _write_part(self, pending: _PendingSave) -> list[FileRecord]:
        if pending.state is None:
            return []
        begin = partial(pending.directory.record_beginning, self._series.prefix, pending.step)
        files = self._writer.write(pending.step, pending.state, begin)
        self._written = list({*self._writer.new_paths, *(os.path.join(self._root, one.path) for one in files)})
        self._upload_wait_s = first_upload.wait_if_first(pending.directory, self._series.prefix, self._written)
        return files

    def _write_manifest(self, pending: _PendingSave, records: Sequence[FileRecord]) -> Manifest | None:
        if self._group.rank != 0:
            return None
        new = finish_step.build_manifest(self._series, pending.step, records, pending.metrics)
        if self._went_back_to is not None:
            paths = pending.directory.abandon_newer(self._series.prefix, self._went_back_to, pending.step)
            self._upload_wait_s += first_upload.wait_for_records(pending.directory, paths)
            self._written, self._went_back_to = [*self._written, *paths], None
        committed = pending.directory.commit(new)
        self._written.append(manifest.path_of(self._root, committed.name))
        return committed

    def _finish(self, pending: _PendingSave, committed: Manifest | None) -> None:
        """The part of a save that training need not wait for: removing a large file takes half as long as writing
        it."""
        if committed is not None:
            with pending.directory.cache.lock:
                finish_step.finish(self._series, committed, pending.directory)
        if pending.state is not None:
            self._leftovers.remove(pending.directory, committed.name if committed is not None else None)

    def _find_saved(self, step: int | None) -> Checkpoint | None:
        return next((one for one in saved_step.newest_first(self._root, self._series.prefix) if one.step == step), None)

    def should_save(self, step: int) -> bool:
        """Whether to save after `step`: it is due, or the machine is about to be taken and there is time to save.

        The same on every rank. What only one process can know (a notice, the time) is exchanged about twice a second,
        whatever the steps are; if one process has to save, all do. With the interval "auto", a save is not due while it
        would only wait for the upload of the last one.
        """
        return self._saved_step != step and self._agreed.is_due(step)

    def preempted(self) -> bool:
        """Whether this machine is about to be taken (the cloud's notice, or SIGTERM): save, then leave.

        Of several processes that call `should_save` at every step, all receive the same result: whether one of them
        was asked to stop. They learn of it at a call of `should_save`, within a second.
        """
        return self._agreed.preempted()

    def on_notice(self, call: Callable[[float | None], object]) -> Callable[[], None]:
        """As `perdure.checkpoint.on_notice`: `call` receives the notice's deadline, in a thread of its own."""
        return preemption.on_notice(call)

    def wait(self) -> None:
        """Return when no save is in flight. Raises the failure of the last one."""
        self._background.wait()

    def wait_durable(self, step: int | None = None, *, timeout_s: float | None = None) -> bool | None:
        """Wait until `step` (None: the last one saved) has reached the bucket, and ask its mount to upload it now.

        True once it has. False if it has not after `timeout_s` or there is no such step. None if it cannot be known.
        Raises as `wait`.
        """
        self._background.wait()
        began = time.monotonic()
        step = self._saved_step if step is None else step
        saved = self._find_saved(step)
        if self._group.world_size > 1 and step is not None and step == self._saved_step:
            saved = mount_refresh.wait_visible(self._root, self._series.prefix, step, timeout_s=timeout_s)
        if saved is None:
            return False
        if timeout_s is not None:
            timeout_s = max(0.0, timeout_s - (time.monotonic() - began))
        durable = status.wait_durable(saved.file_versions, timeout_s=timeout_s)
        if durable:
            self._final_save.record_upload(
                sum(record.size for record in saved.files.values()), time.monotonic() - began
            )
        return durable

    def close(self) -> None:
        """Wait for the last save. Raises its failure."""
        self._background.wait()

    def __enter__(self) -> Checkpointer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.close()
        except CheckpointError:
            if error is None:
                raise
            logger.exception("the last save failed as well")

    # --- loading ------------------------------------------------------------------------------------------

    def load(
        self,
        into: Any = None,
        *,
        step: int | None = None,
        best: str | None = None,
        mode: str | None = None,
        strict: bool = True,
        keys: Iterable[Any] | None = None,
        lazy: bool = False,
        verify: str = sampling.FULL,
    ) -> Any:
        """The newest whole state, every byte of it verified; None if nothing was saved yet.

        `step`: this one instead of the newest. `best`: the one with the best value of this metric; `mode` is "min" or
        "max", by default that of the `keep` rule if it has the metric, else "min". A damaged one is skipped in favor of
        the second best. If the program then saves steps again that come after the loaded one, the old ones are left
        behind: a later `load()` goes on from the new ones.

        `into`: a structure like the one that was saved. Its objects with `load_state_dict` and its arrays receive the
        content, without a second copy in memory; it is returned with everything else replaced. Nothing is changed
        before every process has verified and compared the whole checkpoint. If a file changes after that, an older
        checkpoint is loaded over what was filled already; the error says so if there is none.
        `strict=False` accepts keys that only one of them has; `last_result` lists them. It also has the step, and why
        others were skipped.

        `keys`: load only these of the dict that the state is; a tuple of keys leads into dicts of it. Nothing else of
        the file is read, nor verified. `lazy`: return objects with `shape`, `dtype` and `load()` in place of arrays,
        which read and verify what they need. `verify`: "full" compares every byte with what was saved; "sampled" and
        "size" are faster and miss damage (`format.sampling`).

        Raises NoUsableCheckpoint when there are checkpoints and all are damaged, CheckpointUnavailable when they cannot
        be read now, CheckpointError for one that another number of processes sharded, that does not fit `into`, or if
        there is no such `step` or metric.
        """
        sampling.check_mode(verify)
        used = self._saved_step is not None or self.last_result is not None
        self._background.wait()
        mounts.require_mounted(self._root)
        rank, world = (self._group.rank, self._group.world_size) if self._sharded else (0, 1)
        rule = self._series.keep
        direction = mode or (rule.mode if rule is not None and rule.metric == best else "min")
        choice = Choice(None if step is None else _validate_step(step), best, direction)
        reader = new_reader(into, strict=strict, keys=keys, lazy=lazy)
        self.last_result, state = load_agreed_step(
            self._root, self._series.prefix, self._group, rank, world, verify=verify, choice=choice, reader=reader
        )
        if self.last_result.skipped:
            self._writer.forget()
        is_newest = step is None and best is None
        self._went_back_to = None if is_newest else GoingBack.after(self.last_result.step, self._went_back_to, used)
        if into is None:
            require_no_nodes(state)
        if isinstance(reader, StateInto) and reader.differences is not None:
            missing, unexpected = reader.differences.missing, reader.differences.unexpected
            self.last_result = replace(self.last_result, missing=tuple(missing), unexpected=tuple(unexpected))
        return state

    def latest(self) -> int | None:
        """The newest committed step whose files are all there in full size; None if there is none. Raises as `wait`."""
        self._background.wait()
        return listing.latest(self._root, prefix=self._series.prefix)

    def steps(self, *, verify: bool | str = False) -> list[StepInfo]:
        """Every saved step, newest first; `verify` as for `perdure.checkpoint.steps`. Raises as `wait`."""
        self._background.wait()
        return listing.steps(self._root, prefix=self._series.prefix, verify=verify)


def _validate_step(step: Any) -> int:
    from perdure.checkpoint.save.step_parameter import as_whole_number

    number = as_whole_number(step)
    if number is None or number < 0:
        raise TypeError(f"step must be a whole number, 0 or more, not {step!r}")
    return number
