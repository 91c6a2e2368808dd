"""Lightning: a checkpoint plugin whose files are committed and verified, and a callback that saves at a notice.

trainer = Trainer(plugins=[PerdureCheckpointIO()], callbacks=[ModelCheckpoint(dirpath, ...), SaveAtNotice(dirpath)])
trainer.fit(model, Resumable(loader), ckpt_path=last_checkpoint(dirpath))

Lightning begins an epoch's data anew unless its loader can say where it was: `perdure.checkpoint.Resumable` can.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.plugins.io import TorchCheckpointIO

from perdure.checkpoint import checkpoints, manifest, marks, saving
from perdure.checkpoint.errors import CheckpointError, NoUsableCheckpoint
from perdure.checkpoint.farewell import Farewell
from perdure.checkpoint.loading import refused_all
from perdure.checkpoint.notice import preempted
from perdure.checkpoint.save_dir import root_of
from perdure.checkpoint.saving import Series

PREFIX = "lightning"
_AT_NOTICE = "notice-"
_farewell = Farewell()  # the plugin learns what a save takes, the callback has to know it


class PerdureCheckpointIO(TorchCheckpointIO):
    """Writes as Lightning's own plugin does, under a temporary name first, and commits the file with its digest.
    Once the machine is about to be taken its upload is hurried, and awaited as long as there is time.

    Which files stay is ModelCheckpoint's to say (`save_top_k`, `save_last`); a manifest goes with its file. Loading a
    file that was committed verifies it first, and raises CheckpointError when it is damaged.
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
        _uncommit(root, target.name)
        saving.save(series, step, write)
        _farewell.commit_s = time.monotonic() - began
        if preempted():
            saved = checkpoints.newest_first(root, PREFIX)
            _farewell.hurry(root, step, [path for one in saved if one.step == step for path in one.all_paths])

    def load_checkpoint(self, path: Any, *args: Any, **kwargs: Any) -> dict[str, Any]:
        target = Path(os.path.realpath(path))
        for found in checkpoints.newest_first(str(target.parent), PREFIX):
            if target.name in found.files and (reason := marks.fault(found, believe=False)):
                raise CheckpointError(f"{path} can not be used: {reason}; `last_checkpoint` names one that can")
        loaded: dict[str, Any] = super().load_checkpoint(path, *args, **kwargs)
        return loaded

    def remove_checkpoint(self, path: Any) -> None:
        target = Path(os.path.realpath(path))
        _uncommit(str(target.parent), target.name)
        super().remove_checkpoint(path)


def last_checkpoint(dirpath: str | os.PathLike[str]) -> str | None:
    """The newest whole checkpoint in `dirpath`, for `trainer.fit(ckpt_path=…)`; None to begin anew.

    Raises NoUsableCheckpoint when some were committed and all are broken.
    """
    root = root_of(dirpath)
    skipped: list[tuple[int, str]] = []
    for found in checkpoints.newest_first(root, PREFIX):
        reason = marks.fault(found)
        if reason is None:
            # At the stop that follows a notice ModelCheckpoint saves once more, as if the epoch had been gone through.
            return os.path.join(root, max(found.files, key=lambda name: (name.startswith(_AT_NOTICE), name)))
        skipped.append((found.step, reason))
    if skipped:
        raise NoUsableCheckpoint(refused_all(root, PREFIX, skipped), skipped)
    return None


class SaveAtNotice(pl.Callback):
    """On a notice: saves `notice-step=<step>.ckpt` into `dirpath`, if there is time for it, and ends the training."""

    def __init__(self, dirpath: str | os.PathLike[str]) -> None:
        self._dirpath = os.fspath(dirpath)

    def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
        if trainer.strategy.reduce_boolean_decision(preempted(), all=False) and not trainer.should_stop:
            if trainer.strategy.reduce_boolean_decision(_farewell.can_commit(), all=True):
                trainer.save_checkpoint(os.path.join(self._dirpath, f"{_AT_NOTICE}step={trainer.global_step}.ckpt"))
            trainer.should_stop = True


def _uncommit(root: str, name: str) -> None:
    """The file `name` is about to be written again or removed: its manifest goes first."""
    for found in checkpoints.newest_first(root, PREFIX):
        if name in found.files:
            for one in found.manifests:
                if name in one.paths:
                    manifest.delete(root, one.name)
