"""Hugging Face's Trainer: its own `checkpoint-<step>` folders are committed and verified.

    trainer = Trainer(..., args=TrainingArguments(output_dir), callbacks=[PerdureCallback(keep=3)])
    trainer.train(resume_from_checkpoint=last_checkpoint(output_dir))

Leave `save_total_limit` unset: with it the Trainer deletes by name, even if no newer checkpoint is whole.
"""

from __future__ import annotations

import os
import time
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from perdure.checkpoint.folders import Folders, step_of
from perdure.checkpoint.preemption import preempted
from perdure.checkpoint.ranks.exchange_pace import ExchangePace
from perdure.checkpoint.ranks.group import Group, detect_group
from perdure.checkpoint.save.retention.keep_rule import Keep


def last_checkpoint(output_dir: str | os.PathLike[str]) -> str | None:
    """The newest whole checkpoint's folder, for `trainer.train(resume_from_checkpoint=…)`; None to start from scratch.

    Folders that the Trainer never finished are skipped. Raises NoUsableCheckpoint when all are damaged.
    """
    newest = Folders(output_dir).newest()
    return newest.path if newest else None


class PerdureCallback(TrainerCallback):
    """Commits what the Trainer saves. On a notice it saves once more, if time permits, and ends the training.

    Several processes agree on that about twice a second: if one receives a notice, all save and end.

    `keep`: how many checkpoints to keep, a rule, or None. A rule may use the metrics of the last evaluation
    (`Keep(best=2, metric="eval_loss")`).
    """

    def __init__(self, *, keep: int | Keep | None = 5) -> None:
        self._keep = keep
        self._folders: Folders | None = None
        self._group: Group | None = None
        self._pace = ExchangePace()
        self._metrics: dict[str, float] = {}
        self._began_s: float | None = None  # when the step ended after which the Trainer may save

    def on_evaluate(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        metrics = kwargs.get("metrics") or {}
        self._metrics = {name: value for name, value in metrics.items() if isinstance(value, (int, float))}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        folders, _ = self._set_up(args)
        folders.record_beginning()

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        folders, _ = self._set_up(args)
        best = step_of(str(state.best_model_checkpoint or ""))
        folders.protected_steps.clear()
        if best is not None:
            folders.protected_steps.add(best)  # the Trainer loads it at the end
        folders.commit(int(state.global_step), metrics=self._metrics)
        if self._began_s is not None:
            folders.final_save.commit_s = time.monotonic() - self._began_s

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> TrainerControl:
        folders, group = self._set_up(args)
        self._began_s = time.monotonic()
        if group.world_size > 1 and not self._pace.is_due():
            return control
        must_stop = preempted()
        mine = [must_stop, not must_stop or folders.final_save.can_commit(), self._pace.call_s()]
        votes = group.all_gather(f"notice-{state.global_step}", mine)
        self._pace.conclude([call_s for _, _, call_s in votes])
        if any(must for must, _, _ in votes):
            control.should_save = all(can for _, can, _ in votes)
            control.should_training_stop = True
        return control

    def _set_up(self, args: TrainingArguments) -> tuple[Folders, Group]:
        if self._folders is None or self._group is None:
            self._group = detect_group(os.path.realpath(str(args.output_dir)))
            self._folders = Folders(str(args.output_dir), keep=self._keep, group=self._group)
        return self._folders, self._group
