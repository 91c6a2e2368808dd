"""`Checkpointer`: saves a state and loads the newest whole one, in one line each.

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
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from perdure.checkpoint import (
    checkpoints,
    durability,
    first,
    journal,
    listing,
    manifest,
    memory,
    notice,
    samples,
    saving,
    second_look,
    shards,
)
from perdure.checkpoint.agreeing import agreed_load
from perdure.checkpoint.background import Background
from perdure.checkpoint.checkpoints import Checkpoint
from perdure.checkpoint.errors import CheckpointError
from perdure.checkpoint.farewell import Farewell
from perdure.checkpoint.group import Group, group_of
from perdure.checkpoint.keep import Keep
from perdure.checkpoint.listing import StepInfo
from perdure.checkpoint.loading import LoadResult
from perdure.checkpoint.manifest import FileRecord, Manifest
from perdure.checkpoint.pace import Pace
from perdure.checkpoint.save_dir import SaveDir, root_of
from perdure.checkpoint.saving import Series
from perdure.checkpoint.shards import Content
from perdure.checkpoint.staging import Staging
from perdure.checkpoint.state import container
from perdure.checkpoint.state.restore import restore_into
from perdure.checkpoint.state.tree import flatten
from perdure.checkpoint.together import all_of, attempt

logger = logging.getLogger("perdure.checkpoint")

# Steps between two agreements of several processes on whether to save: each costs a round of messages.
AGREE_EVERY = 10


@dataclass(frozen=True)
class _Save:
    """One save of this process's part, ready to be written. `content` is None where this rank writes nothing."""

    step: int
    content: Content | None
    metrics: Mapping[str, float]
    began: float


class Checkpointer:
    """Checkpoints of one program in one directory. Not for use by several threads.

    `keep`: how many to keep, a rule (`Keep`), or None to keep all. `asynchronous`: `save` copies the state and returns,
    the rest happens behind training; one save is in flight at a time, and what goes wrong is raised by the next call,
    by `close`, or logged at exit. Older checkpoints are always removed behind training. `prefix` names a series; series
    in one directory are kept and loaded apart.
    `metadata` is stored with every checkpoint, as JSON.

    `every`: when `should_save` says yes: each so many steps, or "auto" (the default): as often as pays by the measured
    cost of a save and the measured rate of interruptions. `every_s`: each so many seconds. `total_steps`: the last step
    of the run, where it is known, is saved in any case, and the controller learns from it how much work is left.

    With several processes (torch.distributed where it is initialised, else RANK and WORLD_SIZE) all call the same
    methods in the same order. `sharded`: each saves and loads a part of its own; otherwise rank 0 saves for all. A
    checkpoint is committed when every part is there; all processes load the same step, one that all can verify.

    Raises ValueError for arguments that mean nothing.
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
        group: Group | None = None,
    ) -> None:
        if not isinstance(every, int) and every != "auto":
            raise ValueError(f'every is a number of steps or "auto", not {every!r}; for seconds use every_s')
        self._root = root_of(save_dir)
        rule = Keep(keep) if isinstance(keep, int) else keep
        self._series = Series(self._root, prefix, rule, dict(metadata or {}), saves_all=True)
        self._asynchronous = asynchronous
        self._sharded = sharded
        self._group = group_of(self._root) if group is None else group
        self._farewell = Farewell()
        self._pace = Pace(
            every_steps=every if isinstance(every, int) else None, every_s=every_s, total_steps=total_steps
        )
        if total_steps is not None:
            journal.expect(_checked(total_steps))
        self._staging = Staging()
        self._background = Background()
        self._saves = 0
        self._saved_step: int | None = None
        self._written: list[str] = []  # this process's files of the last save
        self._awaited_s = 0.0  # the bucket, during the last save
        self.last_result: LoadResult | None = None

    # --- saving -------------------------------------------------------------------------------------------

    def save(self, step: int, state: Any, *, metrics: Mapping[str, float] | None = None) -> None:
        """Commit `state` as the checkpoint of `step` (an int, 0 or more).

        `state`: dicts, lists and tuples of numbers, strings and arrays (NumPy, PyTorch, JAX); an object with
        `state_dict` stands for what that returns. `metrics`: numbers that `Keep(best=…)` may choose by.

        Raises Unsaveable (a TypeError) for anything else, CheckpointError when the commit failed, CheckpointUnavailable
        when the directory's mount is missing or a process does not answer; asynchronously, also what went wrong with
        the save before.

        Once the machine is about to be taken, a save is no longer asynchronous: its upload is hurried and awaited as
        long as there is time, and how that ended is logged.
        """
        self._background.wait()
        began = time.monotonic()
        durability.require_mounted(self._root)
        step = _checked(step)
        content: Content | None = None
        if self._sharded or self._group.rank == 0:
            flat = flatten(state)
            layout = container.layout(flat)
            content = shards.content_of(flat, layout)
            if self._asynchronous:
                content = Content(layout.size, [self._staging.copy(flat, layout)])
        this = _Save(step, content, dict(metrics or {}), began)
        if self._asynchronous:
            self._background.start(lambda: self._after(self._commit(this)))
        else:
            committed = self._commit(this)
            self._background.start(lambda: self._after(committed))
        self._saved_step = step
        self._pace.saved(time.monotonic() - began - (0.0 if self._asynchronous else self._awaited_s))
        if self.preempted():
            self._hurry()

    def _hurry(self) -> None:
        """Each process sees to what it wrote itself: another machine's mount can not be hurried from here."""
        self._background.wait()
        self._farewell.hurry(self._root, self._saved_step, self._written)

    def _found(self, step: int | None) -> Checkpoint | None:
        saved = checkpoints.newest_first(self._root, self._series.prefix)
        return next((found for found in saved if found.step == step), None)

    def _commit(self, this: _Save) -> Manifest | None:
        """What was committed, in the process that wrote the manifest."""
        self._saves += 1
        topic = f"save-{self._series.prefix}-{this.step}-{self._saves}"
        with memory.of(self._root).lock:
            part = attempt(lambda: self._write(this))
            records = [record for record in self._all_well(this, topic, part) if record is not None]
            done = attempt(lambda: self._write_manifest(this, records))
            self._all_well(this, f"{topic}-committed", {**done, "value": None})
        took_s = time.monotonic() - this.began - self._awaited_s
        self._pace.worked(took_s)
        self._farewell.commit_s = took_s
        return done["value"]  # type: ignore[no-any-return]

    def _after(self, committed: Manifest | None) -> None:
        """What training need not wait for: removing a large file takes half as long as writing it."""
        if committed is not None:
            known = memory.of(self._root)
            with known.lock:
                saving.after(self._series, committed, known)

    def _write(self, this: _Save) -> dict[str, Any] | None:
        if this.content is None:
            return None
        rank, world = (self._group.rank, self._group.world_size) if self._sharded else (0, 1)
        part = shards.write(self._root, self._series.prefix, this.step, rank, world, this.content)
        self._written = [os.path.join(self._root, part.path)]
        self._awaited_s = first.upload(self._root, self._series.prefix, self._written)
        return vars(part)

    def _write_manifest(self, this: _Save, records: list[dict[str, Any]]) -> Manifest | None:
        if self._group.rank != 0:
            return None
        files = [FileRecord(**record) for record in records]
        committed = manifest.write(self._root, saving.manifest_of(self._series, this.step, files, this.metrics))
        known = memory.of(self._root)
        known.recent.append(committed)
        known.manifests[committed.name] = committed
        self._written.append(manifest.path_of(self._root, committed.name))
        return committed

    def _all_well(self, this: _Save, topic: str, mine: dict[str, Any]) -> list[Any]:
        return all_of(self._group, topic, mine, doing=f"saving step {this.step} in {self._root}")

    def should_save(self, step: int) -> bool:
        """Whether to save after `step`: it is due, or the machine is about to be taken and there is time to save.

        The same on every rank: what only one process can know (a notice, the time) is told to the others every
        `AGREE_EVERY` steps; if one has to save, all do.
        """
        if self._saved_step == step:
            return False
        if self._group.world_size == 1:
            return self._farewell.can_commit() if self.preempted() else self._pace.is_due(step)
        if self._pace.is_last(step) or (self._pace.every_steps is not None and self._pace.is_due(step)):
            return True
        if step % AGREE_EVERY:
            return False
        mine = self._farewell.can_commit() if self.preempted() else self._pace.is_due(step)
        return any(self._group.share(f"due-{self._series.prefix}-{step}", mine))

    def preempted(self) -> bool:
        """Whether this machine is about to be taken (the cloud's notice, or SIGTERM): save, then leave. Of this process
        alone: where several train together, another may hear of it some steps later."""
        return notice.preempted()

    def on_notice(self, call: Callable[[float | None], object]) -> Callable[[], None]:
        """As `perdure.checkpoint.on_notice`: `call` hears of the notice and its deadline, in a thread of its own."""
        return notice.on_notice(call)

    def wait(self) -> None:
        """Return when no save is in flight. Raises what went wrong with the last one."""
        self._background.wait()

    def wait_durable(self, step: int | None = None, *, timeout_s: float | None = None) -> bool | None:
        """Wait until `step` (None: the last one saved) has reached the bucket, and ask its mount to upload it now.

        True once it has; False when it has not after `timeout_s` or there is no such step; None where it can not be
        known. Raises as `wait`.
        """
        self._background.wait()
        wanted = self._saved_step if step is None else step
        began = time.monotonic()
        found = self._found(wanted)
        if self._group.world_size > 1 and wanted is not None and wanted == self._saved_step:
            found = second_look.appeared(self._root, self._series.prefix, wanted, timeout_s=timeout_s)
        if found is None:
            return False
        if timeout_s is not None:
            timeout_s = max(0.0, timeout_s - (time.monotonic() - began))
        durable = durability.wait_durable(found.all_paths, timeout_s=timeout_s)
        if durable:
            self._farewell.uploaded(sum(record.size for record in found.files.values()), time.monotonic() - began)
        return durable

    def close(self) -> None:
        """End the last save. Raises what went wrong with it."""
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

    def load(self, into: Any = None, *, verify: str = samples.FULL) -> Any:
        """The newest whole state, every byte of it verified; None when nothing was saved yet.

        `into`: a structure like the one that was saved; its objects with `load_state_dict` and its arrays are given
        the content, and it is returned with all else replaced. Nothing is touched unless the checkpoint is whole.
        `last_result` tells the step and why newer ones were skipped. `verify`: how closely it is compared with what was
        saved: "full", or "sampled" or "size", which spare the digest and miss damage (`perdure.checkpoint.samples`).

        Raises NoUsableCheckpoint when there are checkpoints and all are broken, CheckpointUnavailable when they can
        not be read now, CheckpointError for one that another number of processes sharded or that does not fit `into`.
        """
        samples.checked(verify)
        self._background.wait()
        durability.require_mounted(self._root)
        rank = self._group.rank if self._sharded else 0
        world = self._group.world_size if self._sharded else 1
        self.last_result, state = agreed_load(self._root, self._series.prefix, self._group, rank, world, verify)
        if into is None or self.last_result.step is None:
            return state
        return restore_into(into, state)

    def latest(self) -> int | None:
        """The newest committed step whose files are there in full size; None when there is none. Raises as `wait`."""
        self._background.wait()
        return listing.latest(self._root, prefix=self._series.prefix)

    def steps(self, *, verify: bool | str = False) -> list[StepInfo]:
        """Every saved step, newest first; `verify` as for `perdure.checkpoint.steps`. Raises as `wait`."""
        self._background.wait()
        return listing.steps(self._root, prefix=self._series.prefix, verify=verify)


def _checked(step: Any) -> int:
    from perdure.checkpoint.binding import whole_number

    found = whole_number(step)
    if found is None or found < 0:
        raise TypeError(f"step must be a whole number, 0 or more, not {step!r}")
    return found
