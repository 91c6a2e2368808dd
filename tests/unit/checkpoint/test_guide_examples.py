"""The decorators are used as SkyPilot's training guide shows: functions that name their own files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perdure.checkpoint import LoadResult, load_checkpoint, save_checkpoint
from unit.checkpoint.training_program import CommittedSteps, Model, Torch

pytestmark = pytest.mark.usefixtures("save_dir")


def test_guide_example__basic_model(torch: type[Torch], new_model: type[Model]) -> None:
    @save_checkpoint(save_dir="checkpoints")
    def save_model(step: int, model: Model) -> None:
        torch.save(model.state_dict(), f"checkpoints/model_{step}.pt")

    @load_checkpoint(save_dir="checkpoints")
    def load_model(step: int, model: Model) -> None:
        model.load_state_dict(torch.load(f"checkpoints/model_{step}.pt"))

    for step in (10, 20, 30):
        save_model(step, new_model(weight=step))
    model = new_model(weight=0)
    assert load_model(0, model) is None
    assert model.state == {"weight": 30}
    assert load_model.last_result.step == 30
    assert load_model.last_result.skipped == ()
    assert [path.endswith("checkpoints/model_30.pt") for path in load_model.last_result.files] == [True]


def test_guide_example__training_state(torch: type[Torch], new_model: type[Model]) -> None:
    @save_checkpoint(save_dir="checkpoints")
    def save_training_state(step: int, model: Model, optimizer: Model) -> None:
        torch.save(
            {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step},
            f"checkpoints/training_{step}.pt",
        )

    @load_checkpoint(save_dir="checkpoints")
    def load_training_state(step: int, model: Model, optimizer: Model) -> Any:
        checkpoint = torch.load(f"checkpoints/training_{step}.pt")
        model.load_state_dict(checkpoint["model"])
        optimizer.load_state_dict(checkpoint["optimizer"])
        return checkpoint["step"]

    save_training_state(7, new_model(w=7), optimizer=new_model(lr=0.7))
    model, optimizer = new_model(), new_model()
    assert load_training_state(step=None, model=model, optimizer=optimizer) == 7
    assert (model.state, optimizer.state) == ({"w": 7}, {"lr": 0.7})


def test_guide_example__metrics_and_prefix(torch: type[Torch], new_model: type[Model]) -> None:
    @save_checkpoint(save_dir="checkpoints", checkpoint_prefix="experiment1")
    def save_with_metrics(step: int, model: Model, metrics: dict[str, float]) -> None:
        torch.save(
            {"model": model.state_dict(), "metrics": metrics, "step": step},
            f"checkpoints/experiment1_step_{step}.pt",
        )

    @load_checkpoint(save_dir="checkpoints", checkpoint_prefix="experiment1")
    def load_with_metrics(step: int, model: Model) -> Any:
        checkpoint = torch.load(f"checkpoints/experiment1_step_{step}.pt")
        model.load_state_dict(checkpoint["model"])
        return checkpoint["metrics"]

    save_with_metrics(3, new_model(w=1), {"loss": 0.5})
    assert load_with_metrics(model=new_model()) == {"loss": 0.5}


def test_guide_example__first_run_calls_nothing(new_model: type[Model]) -> None:
    calls = []

    @load_checkpoint(save_dir="checkpoints")
    def load_model(step: int, model: Model) -> None:
        calls.append(step)

    assert load_model(0, new_model()) is None
    assert calls == []
    assert load_model.last_result == LoadResult(step=None)


def test_guide_example__old_checkpoints_are_removed(
    save_dir: Path, torch: type[Torch], new_model: type[Model], committed: CommittedSteps
) -> None:
    @save_checkpoint("checkpoints", 5)
    def save_model(step: int, model: Model) -> None:
        torch.save(model.state_dict(), f"checkpoints/model_{step}.pt")

    for step in range(8):
        save_model(step, new_model(w=step))
    assert committed(save_dir) == [7, 6, 5, 4, 3]
    assert sorted(path.name for path in save_dir.glob("*.pt")) == [f"model_{step}.pt" for step in range(3, 8)]


def test_guide_example__two_prefixes_in_one_directory(
    save_dir: Path, torch: type[Torch], new_model: type[Model]
) -> None:
    """Both of the guide's functions, in one directory with the same prefix: each step has two parts."""

    @save_checkpoint(save_dir="checkpoints", max_checkpoints=2)
    def save_model(step: int, model: Model) -> None:
        torch.save(model.state_dict(), f"checkpoints/model_{step}.pt")

    @save_checkpoint(save_dir="checkpoints", max_checkpoints=2)
    def save_training_state(step: int, model: Model) -> None:
        torch.save({"model": model.state_dict()}, f"checkpoints/training_{step}.pt")

    @load_checkpoint(save_dir="checkpoints")
    def load_training_state(step: int) -> Any:
        return torch.load(f"checkpoints/training_{step}.pt")

    for step in (1, 2, 3):
        save_model(step, new_model(w=step))
        save_training_state(step, new_model(w=step))
    assert len(list(save_dir.glob("*.pt"))) == 4
    save_model(4, new_model(w=4))  # killed before its training state was saved
    assert load_training_state() == {"model": {"w": 3}}
    ((step, reason),) = load_training_state.last_result.skipped
    assert step == 4
    assert "training_4.pt is not part of it" in reason


def test_guide_example__numpy_archives(new_model: type[Model]) -> None:
    @save_checkpoint(save_dir="checkpoints")
    def save_arrays(step: int, weights: np.ndarray[Any, Any]) -> None:
        np.savez(f"checkpoints/arrays-{step:06d}.npz", weights=weights)

    @load_checkpoint(save_dir="checkpoints")
    def load_arrays(step: int) -> Any:
        with np.load(f"checkpoints/arrays-{step:06d}.npz") as archive:
            return archive["weights"]

    for step in np.arange(3):  # numpy's integers are steps too
        save_arrays(step, np.full(1000, step))
    assert (load_arrays() == 2).all()
    assert type(load_arrays.last_result.step) is int


def test_guide_example__folders_of_shards(save_dir: Path, committed: CommittedSteps) -> None:
    @save_checkpoint(save_dir="checkpoints", max_checkpoints=2)
    def save_shards(step: int) -> None:
        for rank in range(3):
            path = save_dir / f"step_{step}" / "shards" / f"{rank}.bin"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(bytes([step]) * 100)

    @load_checkpoint(save_dir="checkpoints")
    def load_shards(step: int) -> list[bytes]:
        return [path.read_bytes() for path in sorted((save_dir / f"step_{step}" / "shards").iterdir())]

    for step in (1, 2, 3):
        save_shards(step)
    assert committed(save_dir) == [3, 2]
    assert not (save_dir / "step_1").exists()
    (save_dir / "step_3" / "shards" / "1.bin").unlink()
    assert load_shards() == [b"\x02" * 100] * 3
    assert load_shards.last_result.skipped == ((3, "step_3/shards/1.bin is missing"),)
