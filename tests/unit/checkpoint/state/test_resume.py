"""An interrupted run produces the same numbers as an uninterrupted one."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.checkpoint import Checkpointer, CheckpointError
from perdure.checkpoint.state.resume import Resumable, random_state, set_random_state


class Shuffled:
    """A data set whose order is drawn anew for every epoch, as DataLoader(shuffle=True) does."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Iterator[int]:
        return iter(np.random.permutation(self.size).tolist())


def train(directory: Path, *, steps: int, stop_at: int | None = None, epochs: int = 3, size: int = 7) -> list[Any]:
    """What each step saw and drew; ends early at `stop_at`, as a preemption would end it."""
    random.seed(1)
    np.random.seed(2)
    data = Resumable(Shuffled(size))
    seen: list[Any] = []
    step = 0
    with Checkpointer(directory) as checkpointer:
        if (state := checkpointer.load()) is not None:
            step, seen = state["step"], state["seen"]
            data.load_state_dict(state["data"])
            set_random_state(state["random"])
        while data.epoch < epochs:
            for item in data:
                seen.append([item, random.random(), float(np.random.normal())])
                step += 1
                state = {"step": step, "seen": seen, "data": data, "random": random_state()}
                if step == stop_at:
                    checkpointer.save(step, state)
                    return seen
    return seen


@pytest.mark.parametrize("stop_at", [1, 5, 7, 8, 14, 20, 21])
def test_resumable__resumes_to_the_last_bit(tmp_path: Path, stop_at: int) -> None:
    whole = train(tmp_path / "whole", steps=21)
    train(tmp_path / "broken", steps=21, stop_at=stop_at)
    assert train(tmp_path / "broken", steps=21) == whole


def test_resumable__resumes_a_torch_loader_to_the_last_bit(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(3)
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, random_state())
        expected = torch.randn(5)
        set_random_state(checkpointer.load())
    assert torch.equal(torch.randn(5), expected)


@given(st.integers(), st.integers(0, 2**32 - 1))
def test_set_random_state__restores_every_generator(seed: int, numpy_seed: int) -> None:
    random.seed(seed)
    np.random.seed(numpy_seed)
    random.gauss(0, 1)
    state = random_state()
    expected = (random.gauss(0, 1), random.random(), np.random.normal())
    set_random_state(state)
    assert (random.gauss(0, 1), random.random(), np.random.normal()) == expected


def test_set_random_state__rejects_the_state_of_another_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    state = random_state()
    monkeypatch.setenv("RANK", "3")
    before = random.getstate()
    with pytest.raises(CheckpointError, match=r"rank 0, and this process is rank 3.*sharded=True"):
        set_random_state(state)
    assert random.getstate() == before


def test_resumable__rejects_shorter_data() -> None:
    data = Resumable(range(5))
    seen = [item for item, _ in zip(data, range(4), strict=False)]
    assert seen == [0, 1, 2, 3]
    fewer = Resumable(range(2))
    fewer.load_state_dict(data.state_dict())
    with pytest.raises(CheckpointError, match="only 2 batches"):
        list(fewer)
