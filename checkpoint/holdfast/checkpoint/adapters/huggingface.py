"""Hugging Face's Trainer: its own `checkpoint-<step>` folders, committed, verified, and fallen back from.

    trainer = Trainer(..., args=TrainingArguments(output_dir), callbacks=[HoldfastCallback(keep=3)])
    trainer.train(resume_from_checkpoint=last_checkpoint(output_dir))

Leave `save_total_limit` unset: the Trainer would delete by name, whether or not anything newer is whole.
"""

from __future__ import annotations

import os
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from holdfast.checkpoint.folders import Folders
from holdfast.checkpoint.group import Group, group_of
from holdfast.checkpoint.keep import Keep
from holdfast.checkpoint.notice import preempted


def last_checkpoint(output_dir: str | os.PathLike[str]) -> str | None:
    """The newest whole checkpoint's folder, for `trainer.train(resume_from_checkpoint=…)`; None to begin anew.

    One that the Trainer never finished is passed over. Raises NoUsableCheckpoint when all are broken.
    """
    newest = Folders(output_dir).newest()
    return newest.path if newest else None


class HoldfastCallback(TrainerCallback):
    """Commits what the Trainer saves; on a notice saves once more and ends the training.

    `keep`: how many checkpoints to keep, a rule, or None; the metrics of the last evaluation can be kept by
    (`Keep(best=2, metric="eval_loss")`).
    """

    def __init__(self, *, keep: int | Keep | None = 5) -> None:
        self._keep = keep
        self._group: Group | None = None
        self._metrics: dict[str, float] = {}

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        found = kwargs.get("metrics") or {}
        self._metrics = {name: value for name, value in found.items() if isinstance(value, (int, float))}

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._group is None:
            self._group = group_of(os.path.realpath(str(args.output_dir)))
        folders = Folders(str(args.output_dir), keep=self._keep, group=self._group)
        folders.commit(int(state.global_step), metrics=self._metrics)

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        if preempted():
            control.should_save = True
            control.should_training_stop = True
        return control
