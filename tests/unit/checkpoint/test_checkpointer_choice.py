"""`Checkpointer.load` of a certain step, of the best one, and of a state that differs; and what `save` returns."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perdure.checkpoint import Checkpointer, CheckpointError, Keep, NoUsableCheckpoint
from perdure.checkpoint.load import part_files
from support.helpers.timing import scaled
from unit.checkpoint.training_program import Model

LOSSES = {1: 0.9, 2: 0.3, 3: 0.5}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    with Checkpointer(tmp_path) as checkpointer:
        for step, loss in LOSSES.items():
            checkpointer.save(step, {"step": step, "w": np.full(9, step)}, metrics={"loss": loss, "accuracy": 1 - loss})
    return tmp_path


def damage(directory: Path, step: int) -> None:
    (path,) = directory.glob(f"checkpoint-{step:012d}-*.safetensors")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_load__a_certain_step(saved: Path) -> None:
    checkpointer = Checkpointer(saved)
    assert checkpointer.load(step=1)["step"] == 1
    assert checkpointer.last_result is not None
    assert (checkpointer.last_result.step, checkpointer.last_result.skipped) == (1, ())
    assert checkpointer.load()["step"] == 3
    with pytest.raises(CheckpointError, match=r"step 7 is not in .*; saved are: 3, 2, 1"):
        checkpointer.load(step=7)


def test_load__a_damaged_step_is_not_replaced_by_another(saved: Path) -> None:
    damage(saved, 2)
    with pytest.raises(NoUsableCheckpoint, match=r"step 2: .*differs from what was saved") as caught:
        Checkpointer(saved).load(step=2)
    assert [step for step, _ in caught.value.skipped] == [2]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [({"best": "loss"}, 2), ({"best": "accuracy", "mode": "max"}, 2), ({"best": "accuracy"}, 1)],
)
def test_load__the_best_step(saved: Path, arguments: dict[str, str], expected: int) -> None:
    assert Checkpointer(saved).load(**arguments)["step"] == expected  # type: ignore[arg-type]


def test_load__the_best_step_by_the_rule_of_retention(saved: Path) -> None:
    assert Checkpointer(saved, keep=Keep(best=1, metric="accuracy", mode="max")).load(best="accuracy")["step"] == 2


def test_load__the_second_best_step_if_the_best_is_damaged(saved: Path) -> None:
    damage(saved, 2)
    checkpointer = Checkpointer(saved)
    assert checkpointer.load(best="loss")["step"] == 3
    assert checkpointer.last_result is not None
    assert [step for step, _ in checkpointer.last_result.skipped] == [2]


def test_load__an_unknown_metric_names_the_known_ones(saved: Path) -> None:
    with pytest.raises(CheckpointError, match=r"with the metric 'perplexity'; known are: accuracy, loss"):
        Checkpointer(saved).load(best="perplexity")


@pytest.mark.parametrize("arguments", [{"step": 1, "best": "loss"}, {"best": "loss", "mode": "least"}])
def test_load__rejects_contradictions(saved: Path, arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"not both|mode is"):
        Checkpointer(saved).load(**arguments)


def test_load__not_strict_keeps_what_the_checkpoint_lacks(saved: Path) -> None:
    checkpointer = Checkpointer(saved)
    ema = np.zeros(3)
    with pytest.raises(CheckpointError, match=r"lacks \[\"'ema'\"\].*strict=False"):
        checkpointer.load(into={"step": 0, "ema": ema})
    restored = checkpointer.load(into={"step": 0, "ema": ema}, strict=False)
    assert restored == {"step": 3, "ema": ema}
    assert restored["ema"] is ema
    assert checkpointer.last_result is not None
    assert checkpointer.last_result.missing == ("state['ema']",)
    assert checkpointer.last_result.unexpected == ("state['w']",)


def test_load__not_strict_still_rejects_other_shapes(saved: Path) -> None:
    with pytest.raises(CheckpointError, match=r"shape \(9,\) instead of \(8,\)"):
        Checkpointer(saved).load(into={"w": np.zeros(8)}, strict=False)


def test_save__returns_a_handle_that_waits_for_the_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    allowed, real = threading.Event(), part_files.write_part

    def write_part(*arguments: Any) -> Any:
        assert allowed.wait(scaled(30))
        return real(*arguments)

    monkeypatch.setattr(part_files, "write_part", write_part)
    with Checkpointer(tmp_path) as checkpointer:
        handle = checkpointer.save(1, {"step": 1}, wait=False)
        assert (handle.step, handle.done(), handle.durable) == (1, False, False)
        with pytest.raises(TimeoutError, match=r"step 1 is not committed after 0\.01 s"):
            handle.result(0.01)
        allowed.set()
        handle.result(scaled(30))
        assert (handle.done(), handle.durable) == (True, True)
        assert checkpointer.save(2, {"step": 2}).done()


def test_save__its_failure_is_raised_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(part_files, "write_part", fail)
    checkpointer = Checkpointer(tmp_path)
    handle = checkpointer.save(1, {"step": 1}, wait=False)
    with pytest.raises(CheckpointError, match="No space left"):
        handle.result(scaled(30))
    assert handle.durable is False
    checkpointer.wait()
    checkpointer.save(2, {"step": 2}, wait=False)
    with pytest.raises(CheckpointError, match="No space left"):
        checkpointer.wait()


def test_load__a_step_into_objects(tmp_path: Path, new_model: type[Model]) -> None:
    with Checkpointer(tmp_path) as checkpointer:
        for step in (1, 2):
            model = new_model()
            model.load_state_dict({"weight": float(step)})
            checkpointer.save(step, {"model": model})
        target = new_model()
        checkpointer.load(into={"model": target}, step=1)
    assert target.state_dict() == {"weight": 1.0}
