"""A very small GPT under DistributedDataParallel, started by torchrun on every node. It uses NCCL with GPUs, else gloo.

All ranks make the same calls to the Checkpointer: rank 0 saves the common state, and every rank loads it.
"""

from __future__ import annotations

import argparse
import os
import sys
import time

import torch
import torch.distributed as dist
from corpus import shard, text
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from perdure.checkpoint import Checkpointer, preempted

ALPHABET = sorted(set(text()))
BLOCK = 32
WIDTH = 64
BATCH = 32


class MiniGPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.token = nn.Embedding(len(ALPHABET), WIDTH)
        self.place = nn.Embedding(BLOCK, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, len(ALPHABET))

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        length = codes.shape[1]
        mask = nn.Transformer.generate_square_subsequent_mask(length, device=codes.device)
        x = self.token(codes) + self.place(torch.arange(length, device=codes.device))
        return self.head(self.blocks(x, mask=mask, is_causal=True))


parser = argparse.ArgumentParser()
parser.add_argument("--checkpoints", default="/checkpoint")
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--save-every", type=int, default=10)
parser.add_argument("--step-s", type=float, default=0.0, help="minimal duration of a step")
options = parser.parse_args()


def main() -> int:
    cuda = torch.cuda.is_available()
    dist.init_process_group("nccl" if cuda else "gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
    print(f"rank {rank} of {size} joined on {device}", flush=True)

    torch.manual_seed(0)
    model = DistributedDataParallel(MiniGPT().to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    checkpointer = Checkpointer(options.checkpoints, keep=2, asynchronous=True)
    state = {"step": 0, "model": model.module, "optimizer": optimizer}
    checkpointer.load(into=state)  # does nothing at the first start
    step = state["step"]
    if step:
        print(f"rank {rank} resumes from step {step}", flush=True)
    codes = torch.tensor([ALPHABET.index(character) for character in shard(rank, size)])
    while step < options.steps:
        began = time.monotonic()
        loss = train_step(model, optimizer, batch(codes, step, device))
        step += 1
        stop = any_rank(preempted(), device)
        print(f"rank {rank} step {step} loss {loss:.9f}", flush=True)
        if stop or step % options.save_every == 0 or step == options.steps:
            checkpointer.save(step, {**state, "step": step})
        if stop:
            print(f"rank {rank} stops at step {step}: a machine is being taken away", flush=True)
            break
        time.sleep(max(0.0, began + options.step_s - time.monotonic()))
    checkpointer.close()
    dist.destroy_process_group()
    return 0


def batch(codes: torch.Tensor, step: int, device: torch.device) -> torch.Tensor:
    """Windows of the text, chosen by the step alone, so that a resumed run sees the same ones as an uninterrupted
    run."""
    starts = torch.randint(len(codes) - BLOCK - 1, (BATCH,), generator=torch.Generator().manual_seed(step))
    return torch.stack([codes[start : start + BLOCK + 1] for start in starts]).to(device)


def train_step(model: nn.Module, optimizer: torch.optim.Optimizer, windows: torch.Tensor) -> float:
    logits = model(windows[:, :-1])
    loss = nn.functional.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def any_rank(flag: bool, device: torch.device) -> bool:
    """Whether `flag` is set on any rank, so that either all stop after the same step or none does."""
    votes = torch.tensor([float(flag)], device=device)
    dist.all_reduce(votes)
    return bool(votes.item())


if __name__ == "__main__":
    sys.exit(main())
