"""The programs in docs/guides/checkpoints.md run as printed."""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perdure import checkpoint

GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "checkpoints.md"
STEPS = 23


class Part:
    """A model or an optimizer."""

    def __init__(self) -> None:
        self.w = np.zeros(5)

    def state_dict(self) -> dict[str, Any]:
        return {"w": self.w}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.w = state["w"]


class Shuffled:
    """A loader whose order depends on the global random numbers."""

    def __iter__(self) -> Iterator[int]:
        order = list(range(6))
        random.shuffle(order)
        return iter(order)


@pytest.fixture
def program() -> Callable[..., None]:
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), flags=re.DOTALL)
    (source,) = [block for block in blocks if "Resumable(loader)" in block]

    def run(directory: Path, model: Part, seen: list[int], stop_at: int | None = None) -> None:
        def train(batch: int) -> None:
            seen.append(batch)
            model.w = model.w * 0.5 + batch + np.random.random(5)
            if len(seen) == stop_at:
                raise KeyboardInterrupt

        given = {"model": model, "optimizer": Part(), "loader": Shuffled(), "steps": STEPS, "train": train, "sys": sys}
        code = source.replace("/checkpoint/run", str(directory))
        code = code.replace("asynchronous=True", "asynchronous=True, every=4").replace(
            "every_steps=10_000", "every_steps=8"
        )
        exec(code, given)

    return run


def test_guide__program_resumes_to_the_last_bit(tmp_path: Path, program: Callable[..., None]) -> None:
    def seeded() -> None:
        random.seed(1)
        np.random.seed(1)

    whole, all_seen = Part(), list[int]()
    seeded()
    program(tmp_path / "whole", whole, all_seen)
    assert len(all_seen) >= STEPS

    cut, first, rest = Part(), list[int](), list[int]()
    seeded()
    with pytest.raises(KeyboardInterrupt):
        program(tmp_path / "cut", cut, first, stop_at=15)
    random.seed(99)
    np.random.seed(99)
    again = Part()
    program(tmp_path / "cut", again, rest)
    assert first[:12] + rest == all_seen
    assert again.w.tobytes() == whole.w.tobytes()
    assert checkpoint.steps(tmp_path / "cut")[0].step == len(all_seen) // 4 * 4
