"""The checkpoint examples of SkyPilot's training guide with the real PyTorch, word for word, except for the line
that imports the two decorators."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from seeds.documents import TRAINING_GUIDE

if TYPE_CHECKING:
    import torch

pytestmark = pytest.mark.long

HEAD = """
import torch
from typing import Dict
from perdure.checkpoint import load_checkpoint, save_checkpoint
"""
LOADS = TRAINING_GUIDE.take("# Basic model loading").here
BASIC = TRAINING_GUIDE.take('@save_checkpoint(save_dir="checkpoints")\ndef save_model').here
OPTIMIZER = TRAINING_GUIDE.take('@save_checkpoint(save_dir="checkpoints")\ndef save_training_state').here
METRICS = TRAINING_GUIDE.take('@save_checkpoint(save_dir="checkpoints", checkpoint_prefix="experiment1")').here


Definitions = Callable[[str], dict[str, Any]]


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Definitions:
    """The definitions of an example, in a temporary working directory."""
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)

    def run(example: str) -> dict[str, Any]:
        names: dict[str, Any] = {}
        exec("\n".join((HEAD, example, LOADS)), names)
        return names

    return run


def model(value: float) -> torch.nn.Module:
    import torch

    made = torch.nn.Linear(3, 3)
    with torch.no_grad():
        made.weight.fill_(value)
    return made


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_guide_example__basic_model(given: Definitions, tmp_path: Path) -> None:
    example = given(BASIC)
    assert example["load_model"](0, model(0)) is None
    assert example["load_model"].last_result.step is None
    for step in range(1, 8):
        example["save_model"](step, model(step))
    assert sorted(path.name for path in (tmp_path / "checkpoints").glob("*.pt")) == [
        f"model_{n}.pt" for n in range(3, 8)
    ]
    flip_a_bit(tmp_path / "checkpoints" / "model_7.pt")
    target = model(0)
    example["load_model"](0, target)
    assert example["load_model"].last_result.step == 6
    assert target.weight.unique().tolist() == [6]


def test_guide_example__optimizer_state(given: Definitions) -> None:
    import torch

    example = given(OPTIMIZER)
    source = model(1)
    optimizer = torch.optim.Adam(source.parameters(), lr=0.25)
    source(torch.ones(3)).sum().backward()
    optimizer.step()
    example["save_training_state"](20, source, optimizer)
    target = model(0)
    other = torch.optim.Adam(target.parameters(), lr=0.5)
    assert example["load_training_state"](0, target, other) == 20
    assert torch.equal(target.weight, source.weight)
    assert other.state_dict()["param_groups"][0]["lr"] == 0.25


def test_guide_example__metrics_and_prefix(given: Definitions) -> None:
    example = given(METRICS)
    for step in (9, 10):
        example["save_with_metrics"](step, model(step), {"loss": 1 / step})
    target = model(0)
    assert example["load_with_metrics"](0, target) == {"loss": 0.1}
    assert target.weight.unique().tolist() == [10]
