"""Trains the perceptron of `model`, and resumes after any loss of its machine.

That takes two decorated functions, which save and load, and one check per step.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time

import numpy as np
from model import Trainer

from perdure.checkpoint import load_checkpoint, preempted, save_checkpoint

parser = argparse.ArgumentParser()
parser.add_argument("--checkpoints", default="/checkpoint")
parser.add_argument("--steps", type=int, default=1000)
parser.add_argument("--save-every", type=int, default=100)
parser.add_argument("--print-every", type=int, default=20)
parser.add_argument("--step-s", type=float, default=0.0, help="minimal duration of a step, to imitate a larger model")
options = parser.parse_args()


@save_checkpoint(save_dir=options.checkpoints, max_checkpoints=3)
def save(step: int, trainer: Trainer) -> None:
    np.savez(f"{options.checkpoints}/step_{step}.npz", **trainer.state())


@load_checkpoint(save_dir=options.checkpoints)
def load(step: int, trainer: Trainer) -> None:
    with np.load(f"{options.checkpoints}/step_{step}.npz") as state:
        trainer.load_state(state)


def main() -> int:
    # A machine that is about to be taken sends SIGTERM, which by default ends Python at once. `preempted` is checked
    # instead.
    signal.signal(signal.SIGTERM, lambda *_: None)
    task_id = os.environ.get("SKYPILOT_TASK_ID", "-")
    trainer = Trainer(seed=7)
    load(trainer=trainer)
    if trainer.step >= options.steps:
        print(
            f"{options.checkpoints} holds a finished run: nothing to train. "
            "For a new run, remove that folder of the bucket, or give another --checkpoints.",
            flush=True,
        )
    elif trainer.step:
        print(f"resumed from step {trainer.step}", flush=True)

    while trainer.step < options.steps:
        began = time.monotonic()
        loss = trainer.train_step()
        if trainer.step % options.print_every == 0:
            print(f"step {trainer.step} loss {loss:.4f} task {task_id}", flush=True)
        stop = preempted()
        if stop or trainer.step % options.save_every == 0 or trainer.step == options.steps:
            save(trainer.step, trainer)
        if stop:
            print(f"saved step {trainer.step}: this machine is being taken away", flush=True)
            return 0
        time.sleep(max(0.0, began + options.step_s - time.monotonic()))

    loss, accuracy = trainer.evaluate()
    print(f"done: step {trainer.step} final loss {loss:.12f} accuracy {accuracy:.4f} task {task_id}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
