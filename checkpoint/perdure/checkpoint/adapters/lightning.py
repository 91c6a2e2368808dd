"""Lightning: a checkpoint plugin whose files are committed and verified, and a callback that saves at a notice.

    callbacks = [ModelCheckpoint(dirpath, ...), SaveAtNotice(dirpath)]
    trainer = Trainer(plugins=[PerdureCheckpointIO()], callbacks=callbacks)
    trainer.fit(model, Resumable(loader), ckpt_path=last_checkpoint(dirpath))

Lightning restarts an epoch's data unless its loader stores its position, as `perdure.checkpoint.Resumable` does.
"""

from __future__ import annotations

import logging
import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.plugins.io import TorchCheckpointIO

from perdure.checkpoint.errors import CheckpointError, NoUsableCheckpoint
from perdure.checkpoint.format import digest, manifest
from perdure.checkpoint.format.save_dir import root_of
from perdure.checkpoint.load import directory_cache, lost_manifests
from perdure.checkpoint.load.function_load import all_refused_message
from perdure.checkpoint.load.saved_step import newest_first
from perdure.checkpoint.load.verify import verify_and_mark
from perdure.checkpoint.preemption import is_noticed, preempted
from perdure.checkpoint.save import finish_step, function_save
from perdure.checkpoint.save.final_save import FinalSave
from perdure.checkpoint.save.finish_step import Series
from perdure.checkpoint.save.save_directory import SaveDirectory
from perdure.checkpoint.state.resume import Resumable, random_state, set_random_state

logger = logging.getLogger("perdure.checkpoint")

PREFIX = "lightning"
_AT_NOTICE = "notice-"
_RANDOM = "perdure_random_states"  # in a checkpoint: of every rank
_final_save = FinalSave()  # the plugin measures saves, and the callback decides by the measurement


class PerdureCheckpointIO(TorchCheckpointIO):
    """Writes as Lightning's own plugin does, under a temporary name first, and commits the file with its digest.

    Once the machine is about to be taken, the upload is given priority and awaited as long as time permits.
    ModelCheckpoint decides which files stay (`save_top_k`, `save_last`); a manifest is removed with its file. Loading a
    committed file verifies it first, and raises CheckpointError when it is damaged.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        target = Path(os.path.realpath(path))
        root, step = str(target.parent), int(checkpoint.get("global_step", 0))
        series = Series(root, PREFIX, None, {"file": target.name})
        temporary = target.with_name(f".tmp-{target.name}")

        def write() -> None:
            super(PerdureCheckpointIO, self).save_checkpoint(checkpoint, temporary, storage_options)
            os.replace(temporary, target)

        began = time.monotonic()
        directory = SaveDirectory.open(root)
        if any(target.name in saved.files for saved in directory.checkpoints(PREFIX)):
            super().save_checkpoint(checkpoint, temporary, storage_options)
            _replace(series, step, temporary, target, directory)
        else:
            function_save.save(series, step, write, directory)
        _final_save.commit_s = time.monotonic() - began
        if is_noticed():
            saved = [one for one in newest_first(root, PREFIX) if one.step == step]
            _final_save.upload_if_mounted(root, step, [path for one in saved for path in one.all_paths])

    def load_checkpoint(self, path: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        target = Path(os.path.realpath(path))
        reasons: list[str | None] = []
        for saved in newest_first(str(target.parent), PREFIX):
            if target.name in saved.files and None not in reasons:
                reasons.append(verify_and_mark(saved, trust_marks=False))
        if reasons and None not in reasons:  # a save that was interrupted leaves two manifests, of which one is valid
            raise CheckpointError(f"{path} cannot be used: {reasons[0]}; `last_checkpoint` names one that can")
        loaded: dict[str, Any] = super().load_checkpoint(path, *args, **kwargs)
        return loaded

    def remove_checkpoint(self, path: Any) -> None:
        target = Path(os.path.realpath(path))
        _uncommit(SaveDirectory(str(target.parent)), target.name)
        super().remove_checkpoint(path)


def last_checkpoint(dirpath: str | os.PathLike[str]) -> str | None:
    """The newest whole checkpoint in `dirpath`, for `trainer.fit(ckpt_path=…)`; None to start from scratch.

    Raises NoUsableCheckpoint when some were committed and all are damaged, CheckpointUnavailable when there are files
    that were not committed: of a run without this plugin, or without their manifests.
    """
    root = root_of(dirpath)
    skipped: list[tuple[int, str]] = []
    directory_cache.for_directory(root).was_searched = True
    for saved in newest_first(root, PREFIX):
        reason = verify_and_mark(saved)
        if reason is None:
            # When a notice ends the training, ModelCheckpoint saves once more, as if the epoch had been completed.
            return os.path.join(root, max(saved.files, key=lambda name: (name.startswith(_AT_NOTICE), name)))
        skipped.append((saved.step, reason))
    if skipped:
        raise NoUsableCheckpoint(all_refused_message(root, PREFIX, skipped), skipped)
    lost_manifests.refuse(root, PREFIX, lambda name: name.endswith(".ckpt") and not name.startswith("."))
    return None


class SaveAtNotice(pl.Callback):
    """On a notice: saves `notice-step=<step>.ckpt` into `dirpath`, if time permits, and ends the training.

    It also adds every rank's random numbers to each checkpoint, and restores them: a resumed run computes the same
    numbers to the last bit. A checkpoint of another number of processes or GPUs is loaded without them.
    """

    def __init__(self, dirpath: str | os.PathLike[str]) -> None:
        self._dirpath = os.fspath(dirpath)

    def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
        if trainer.strategy.reduce_boolean_decision(preempted(), all=False) and not trainer.should_stop:
            if trainer.strategy.reduce_boolean_decision(_final_save.can_commit(), all=True):
                trainer.save_checkpoint(os.path.join(self._dirpath, f"{_AT_NOTICE}step={trainer.global_step}.ckpt"))
            trainer.should_stop = True

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        states = [random_state()]
        if trainer.world_size > 1:
            states = [{} for _ in range(trainer.world_size)]
            torch.distributed.all_gather_object(states, random_state())
        checkpoint[_RANDOM] = states

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        _begin_next_epoch(checkpoint)
        states = checkpoint.get(_RANDOM, ())
        if len(states) != trainer.world_size:
            logger.warning(
                "the checkpoint has the random numbers of %d processes, and %d are running: other numbers follow",
                *(len(states), trainer.world_size),
            )
            return
        try:
            set_random_state(states[trainer.global_rank])
        except CheckpointError as error:
            logger.warning("the random numbers are not restored, and other numbers follow: %s", error)


def _begin_next_epoch(checkpoint: dict[str, Any]) -> None:
    """If it was saved after the last batch of an epoch, have `Resumable` loaders begin with the next one.

    Lightning takes that epoch for completed, and requests the batches of the next.
    """
    loop = checkpoint.get("loops", {}).get("fit_loop", {})
    if not loop.get("epoch_loop.batch_progress", {}).get("is_last_batch"):
        return
    for state in loop.get("state_dict", {}).get("combined_loader", ()):
        if isinstance(state, dict) and state.keys() >= Resumable.STATE_KEYS and state["batches"]:
            state.update(epoch=state["epoch"] + 1, batches=0, began=None, loader=None)


def _replace(series: Series, step: int, temporary: Path, target: Path, directory: SaveDirectory) -> None:
    """Replace a committed file such as `last.ckpt`. Whenever this is interrupted, its old or its new content counts.

    The new content is committed before it gets its name: until then its manifest is taken for damaged, and the old one
    is valid. The bucket of a mount may have the old content for a while, so the old manifest stays until the next save.
    """
    record = function_save.digest_file(directory, temporary.name, digest.preferred_algorithm(), may_grow=False)
    if directory.is_on_mount:
        _uncommit(directory, target.name, but=_newest_of(directory, target.name))
    committed = directory.commit(finish_step.build_manifest(series, step, [replace(record, path=target.name)]))
    os.replace(temporary, target)
    manifest.sync_directory(directory.root)
    finish_step.finish(series, committed, directory)
    if not directory.is_on_mount:
        _uncommit(directory, target.name, but=committed.name)


def _newest_of(directory: SaveDirectory, name: str) -> str:
    """The name of the newest manifest that lists the file `name`; empty if none does."""
    listing = [one for saved in directory.checkpoints(PREFIX) for one in saved.manifests if name in one.paths]
    return max(listing, key=lambda one: one.order).name if listing else ""


def _uncommit(directory: SaveDirectory, name: str, *, but: str = "") -> None:
    """Remove the manifests that list the file `name`, but for the one called `but`."""
    for saved in list(directory.checkpoints(PREFIX)):
        for one in saved.manifests:
            if name in one.paths and one.name != but:
                directory.delete(one.name)
