"""Hugging Face's Trainer: its own `checkpoint-<step>` folders, committed, verified, and fallen back from.

    trainer = Trainer(..., args=TrainingArguments(output_dir), callbacks=[PerdureCallback(keep=3)])
    trainer.train(resume_from_checkpoint=last_checkpoint(output_dir))

Leave `save_total_limit` unset: the Trainer would delete by name, whether or not anything newer is whole.
"""

from __future__ import annotations

import os
import time
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from perdure.checkpoint.checkpointer import AGREE_EVERY
from perdure.checkpoint.folders import Folders
from perdure.checkpoint.group import Group, group_of
from perdure.checkpoint.keep import Keep
from perdure.checkpoint.notice import preempted


def last_checkpoint(output_dir: str | os.PathLike[str]) -> str | None:
    """The newest whole checkpoint's folder, for `trainer.train(resume_from_checkpoint=…)`; None to begin anew.

    One that the Trainer never finished is passed over. Raises NoUsableCheckpoint when all are broken.
    """
    newest = Folders(output_dir).newest()
    return newest.path if newest else None


class PerdureCallback(TrainerCallback):
    """Commits what the Trainer saves; on a notice saves once more, if there is time for it, and ends the training.

    Several processes agree on that every `AGREE_EVERY` steps: if one hears of a notice, all save and end.

    `keep`: how many checkpoints to keep, a rule, or None; the metrics of the last evaluation can be kept by
    (`Keep(best=2, metric="eval_loss")`).
    """

    def __init__(self, *, keep: int | Keep | None = 5) -> None:
        self._keep = keep
        self._folders: Folders | None = None
        self._group: Group | None = None
        self._metrics: dict[str, float] = {}
        self._began_s: float | None = None  # when the save that is due was asked for

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        found = kwargs.get("metrics") or {}
        self._metrics = {name: value for name, value in found.items() if isinstance(value, (int, float))}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        self._ready(args)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        folders, _ = self._ready(args)
        folders.commit(int(state.global_step), metrics=self._metrics)
        if self._began_s is not None:
            folders.farewell.commit_s = time.monotonic() - self._began_s

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        folders, group = self._ready(args)
        self._began_s = time.monotonic()
        if group.world_size > 1 and state.global_step % AGREE_EVERY:
            return control
        must_leave = preempted()
        mine = [must_leave, not must_leave or folders.farewell.can_commit()]
        said = group.share(f"notice-{state.global_step}", mine)
        if any(must for must, _ in said):
            control.should_save = all(can for _, can in said)
            control.should_training_stop = True
        return control

    def _ready(self, args: TrainingArguments) -> tuple[Folders, Group]:
        if self._folders is None or self._group is None:
            self._group = group_of(os.path.realpath(str(args.output_dir)))
            self._folders = Folders(str(args.output_dir), keep=self._keep, group=self._group)
        return self._folders, self._group
