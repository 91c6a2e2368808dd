"""The Hugging Face Trainer on generated data: which of three words a sentence is about.

To survive preemption it needs one callback, and one call that returns the checkpoint to resume from.

Requires transformers and torch, but no download and no GPU.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import Any

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

from perdure.checkpoint.adapters.huggingface import PerdureCallback, last_checkpoint

WORDS, LENGTH, CLASSES = 32, 12, 3


def sentences(count: int) -> list[dict[str, torch.Tensor]]:
    """Random words; the label is which of the words 1, 2 and 3 occurs most often."""
    random = torch.Generator().manual_seed(7)
    words = torch.randint(0, WORDS, (count, LENGTH), generator=random) % 7
    labels = torch.stack([(words == word).sum(1) for word in range(1, CLASSES + 1)], 1).argmax(1)
    return [{"input_ids": line, "labels": label} for line, label in zip(words, labels, strict=True)]


parser = argparse.ArgumentParser()
parser.add_argument("--output_dir", required=True)
parser.add_argument("--max_steps", type=int, default=200)
parser.add_argument("--save_steps", type=int, default=50)
parser.add_argument("--step_s", type=float, default=0.0, help="minimal duration of a step, to imitate a larger model")
options = parser.parse_args()


class MinimalStepTime(TrainerCallback):
    """Extends each step of this small model to `--step_s` seconds."""

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self.began = time.monotonic()

    def on_step_end(self, *_: Any, **__: Any) -> None:
        time.sleep(max(0.0, self.began + options.step_s - time.monotonic()))


def main() -> int:
    torch.manual_seed(1)
    config = BertConfig(
        vocab_size=WORDS,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        num_labels=CLASSES,
    )
    arguments = TrainingArguments(
        options.output_dir,
        max_steps=options.max_steps,
        save_steps=options.save_steps,
        logging_steps=10,
        per_device_train_batch_size=16,
        learning_rate=3e-3,
        report_to=[],
        disable_tqdm=True,
    )
    trainer = Trainer(
        BertForSequenceClassification(config),
        arguments,
        train_dataset=sentences(512),
        # The first commits what the Trainer saves, and saves once more at a notice.
        callbacks=[PerdureCallback(keep=3), MinimalStepTime()],
    )
    newest = last_checkpoint(options.output_dir)  # the newest complete checkpoint; None at the first start
    print(f"task {os.environ.get('SKYPILOT_TASK_ID', '-')} begins from {newest or 'the beginning'}", flush=True)
    trainer.train(resume_from_checkpoint=newest)
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    weights = sum(parameter.double().abs().sum() for parameter in trainer.model.parameters())
    print(f"ends at step {trainer.state.global_step}: loss {losses[-1]} weights {weights:.12f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
