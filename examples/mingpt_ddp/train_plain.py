"""For machines without PyTorch: a next-character model trained on all nodes of the job.

Each node computes gradients on its own shard of the text. The group sums them, so every node takes the same step and
has the same weights. Rank 0 saves. When any node is asked to stop, all stop after the same step.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import sys
import time
from array import array

from allreduce import Group
from corpus import shard, text

from perdure.checkpoint import load_checkpoint, preempted, save_checkpoint

ALPHABET = sorted(set(text()))
SIZE = len(ALPHABET)
CONTEXT = 2
ROWS = SIZE**CONTEXT
LEARNING_RATE = 40.0


def examples(part: str) -> list[tuple[int, int]]:
    """(row of the table: the last two characters, next character) for every position of the text."""
    codes = [ALPHABET.index(character) for character in part]
    return [(codes[i - 2] * SIZE + codes[i - 1], codes[i]) for i in range(CONTEXT, len(codes))]


def loss_and_gradient(logits: list[float], data: list[tuple[int, int]]) -> tuple[float, list[float]]:
    gradient = [0.0] * len(logits)
    loss = 0.0
    for row, target in data:
        start = row * SIZE
        exp = [math.exp(value) for value in logits[start : start + SIZE]]
        total = sum(exp)
        loss -= math.log(exp[target] / total)
        for index, value in enumerate(exp):
            gradient[start + index] += value / total / len(data)
        gradient[start + target] -= 1.0 / len(data)
    return loss / len(data), gradient


parser = argparse.ArgumentParser()
parser.add_argument("--checkpoints", default="/checkpoint")
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--save-every", type=int, default=10)
parser.add_argument("--step-s", type=float, default=0.0, help="minimal duration of a step")
options = parser.parse_args()


@save_checkpoint(save_dir=options.checkpoints, max_checkpoints=2)
def save(step: int, logits: list[float]) -> None:
    with open(f"{options.checkpoints}/step_{step}.bin", "wb") as file:
        array("d", logits).tofile(file)


@load_checkpoint(save_dir=options.checkpoints)
def load(step: int) -> tuple[int, list[float]]:
    logits = array("d")
    with open(f"{options.checkpoints}/step_{step}.bin", "rb") as file:
        logits.fromfile(file, ROWS * SIZE)
    return step, list(logits)


def main() -> int:
    # SIGTERM means that the machine is about to be taken. By default it would end Python at once.
    signal.signal(signal.SIGTERM, lambda *_: None)
    rank = int(os.environ["SKYPILOT_NODE_RANK"])
    group = Group(rank=rank, addresses=os.environ["SKYPILOT_NODE_IPS"].split())
    print(f"rank {rank} of {group.size} joined", flush=True)

    step, logits = restore(group)
    data = examples(shard(rank, group.size))
    while step < options.steps:
        began = time.monotonic()
        loss, gradient = loss_and_gradient(logits, data)
        # Two more numbers are summed: the loss of every node, and whether a node was asked to stop.
        *summed, loss_sum, stop = group.sum([*gradient, loss, float(preempted())])
        logits = [weight - LEARNING_RATE * g / group.size for weight, g in zip(logits, summed, strict=True)]
        step += 1
        size = sum(map(abs, logits))
        print(f"rank {rank} step {step} loss {loss_sum / group.size:.9f} weights {size:.9f}", flush=True)
        if rank == 0 and (stop or step % options.save_every == 0 or step == options.steps):
            save(step, logits)
        if stop:
            print(f"rank {rank} stops at step {step}: a machine is being taken away", flush=True)
            break
        time.sleep(max(0.0, began + options.step_s - time.monotonic()))
    group.close()
    return 0


def restore(group: Group) -> tuple[int, list[float]]:
    """Rank 0 loads. The others contribute zeros, so the sum gives all nodes what rank 0 loaded."""
    nothing = (0, [0.0] * (ROWS * SIZE))
    step, logits = (load() or nothing) if group.rank == 0 else nothing
    first, *logits = group.sum([float(step), *logits])
    if first:
        print(f"rank {group.rank} resumes from step {int(first)}", flush=True)
    return int(first), logits


if __name__ == "__main__":
    sys.exit(main())
