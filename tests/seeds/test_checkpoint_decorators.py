"""The guide's checkpoint functions, as printed, with a stand-in for PyTorch: its own implementation, and ours."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from seeds.documents import TRAINING_GUIDE
from seeds.image import STAND_INS

BASIC_SAVE = TRAINING_GUIDE.take("def save_checkpoint(step: int, model: torch.nn.Module):")
BASIC_LOAD = TRAINING_GUIDE.take("def load_checkpoint(save_dir: str='/checkpoints'):")
IMPLEMENTATION = TRAINING_GUIDE.take("from datetime import datetime")
SAVE_MODEL = TRAINING_GUIDE.take('@save_checkpoint(save_dir="checkpoints")\ndef save_model')
SAVE_TRAINING_STATE = TRAINING_GUIDE.take('@save_checkpoint(save_dir="checkpoints")\ndef save_training_state')
SAVE_WITH_METRICS = TRAINING_GUIDE.take('@save_checkpoint(save_dir="checkpoints", checkpoint_prefix="experiment1")')
LOADS = TRAINING_GUIDE.take("# Basic model loading")

OURS = "import torch\nfrom typing import Dict\nfrom perdure.checkpoint import load_checkpoint, save_checkpoint\n"
Definitions = Callable[[str], dict[str, Any]]


@pytest.fixture
def given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Definitions]:
    """Returns the names that code defines, in a temporary working directory."""
    monkeypatch.chdir(tmp_path)
    real = sys.modules.pop("torch", None)
    monkeypatch.syspath_prepend(str(STAND_INS / "python"))

    def run(code: str) -> dict[str, Any]:
        names: dict[str, Any] = {}
        exec(code, names)
        return names

    yield run
    sys.modules.pop("torch", None)
    if real is not None:
        sys.modules["torch"] = real


def with_ours(*examples: str) -> str:
    return "\n".join((OURS, *examples))


def a_model(names: dict[str, Any], value: float) -> Any:
    """A module with one number as its state."""
    return names["torch"].nn.Module(value)


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_basic_functions__save_and_find_nothing(given: Definitions) -> None:
    """The guide's own file names differ between the two, so its `load` finds nothing and says so."""
    names = given("import torch\nfrom pathlib import Path\n" + BASIC_SAVE.here.replace("/checkpoints", "checkpoints"))
    Path("checkpoints").mkdir()
    names["save_checkpoint"](1, a_model(names, 1))
    assert [path.name for path in Path("checkpoints").iterdir()] == ["model_1.pt"]
    names = given("import logging\nfrom pathlib import Path\nlogger = logging.getLogger()\n" + BASIC_LOAD.here)
    assert names["load_checkpoint"]("checkpoints") is None


def test_guides_implementation__works_for_file_names_of_its_own(
    given: Definitions, caplog: pytest.LogCaptureFixture
) -> None:
    """It finds only files that are named after the prefix, as those of the last example are."""
    names = given("\n".join((IMPLEMENTATION.here, SAVE_WITH_METRICS.here, LOADS.here)))
    for step in (9, 10):
        names["save_with_metrics"](step, a_model(names, step), {"loss": 1 / step})
    target = a_model(names, 0)
    with caplog.at_level(logging.WARNING):
        assert names["load_with_metrics"](0, target) == {"loss": 0.1}
    assert target.value == 10
    assert not caplog.records


def test_guides_example__basic_model(given: Definitions) -> None:
    names = given(with_ours(SAVE_MODEL.here, LOADS.here))
    assert names["load_model"](0, a_model(names, 0)) is None
    assert names["load_model"].last_result.step is None
    for step in range(1, 8):
        names["save_model"](step, a_model(names, step))
    assert sorted(path.name for path in Path("checkpoints").glob("*.pt")) == [f"model_{n}.pt" for n in range(3, 8)]
    flip_a_bit(Path("checkpoints/model_7.pt"))
    target = a_model(names, 0)
    names["load_model"](0, target)
    assert names["load_model"].last_result.step == 6
    assert target.value == 6


def test_guides_example__optimizer_state(given: Definitions) -> None:
    names = given(with_ours(SAVE_TRAINING_STATE.here, LOADS.here))
    source, target = a_model(names, 1), a_model(names, 0)
    optimizers = [names["torch"].optim.Optimizer(rate) for rate in (0.25, 0.5)]
    names["save_training_state"](20, source, optimizers[0])
    assert names["load_training_state"](0, target, optimizers[1]) == 20
    assert target.value == 1
    assert optimizers[1].state_dict() == optimizers[0].state_dict()


def test_guides_example__metrics_and_prefix(given: Definitions) -> None:
    names = given(with_ours(SAVE_WITH_METRICS.here, LOADS.here))
    for step in (9, 10):
        names["save_with_metrics"](step, a_model(names, step), {"loss": 1 / step})
    target = a_model(names, 0)
    assert names["load_with_metrics"](0, target) == {"loss": 0.1}
    assert target.value == 10
