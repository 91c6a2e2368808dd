"""`Checkpointer.load(keys=…)`: a part of a state, without reading and verifying the rest of it."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perdure.checkpoint import Checkpointer, CheckpointError, NoUsableCheckpoint
from perdure.checkpoint.format.block_digests import BLOCK_BYTES
from perdure.checkpoint.load.block_compare import BlockReader
from unit.checkpoint.training_program import Model

LARGE = 3 * BLOCK_BYTES // 8  # float64


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    with Checkpointer(tmp_path) as checkpointer:
        for step in (1, 2):
            model = OrderedDict(weight=np.full(LARGE, step, np.float64), bias=np.full(3, step))
            moments = [np.full(LARGE, -step, np.float64), np.full(2, -step)]
            checkpointer.save(step, {"step": step, "model": model, "optimizer": {"moments": moments, 0: "zero"}})
    return tmp_path


def flip(directory: Path, step: int, at: int) -> None:
    (path,) = directory.glob(f"checkpoint-{step:012d}-*.safetensors")
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("verify", ["full", "sampled", "size"])
def test_keys__return_only_these(saved: Path, verify: str) -> None:
    load = Checkpointer(saved).load
    assert load(keys=["step"], verify=verify) == {"step": 2}
    assert load(keys=[], verify=verify) == {}
    loaded = load(keys=["model", ("optimizer", 0)], verify=verify)
    assert list(loaded) == ["model", "optimizer"]
    assert type(loaded["model"]) is OrderedDict
    assert set(loaded["model"]["weight"]) == {2.0}
    assert loaded["model"]["bias"].tolist() == [2, 2, 2]
    assert loaded["optimizer"] == {0: "zero"}
    assert list(load(keys=[("model", "bias")], verify=verify)["model"]) == ["bias"]


def test_keys__read_no_other_block(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: set[int] = set()
    real = BlockReader._fetch

    def fetch(reader: BlockReader, number: int, **how: Any) -> Any:
        read.add(number)
        return real(reader, number, **how)

    monkeypatch.setattr(BlockReader, "_fetch", fetch)
    Checkpointer(saved).load(keys=[("model", "weight")])
    assert read == {0, 1, 2, 3}
    read.clear()
    Checkpointer(saved).load()
    assert read == set(range(7))


def test_keys__damage_counts_if_it_is_in_what_is_loaded(saved: Path) -> None:
    flip(saved, 2, -BLOCK_BYTES)  # the moments
    checkpointer = Checkpointer(saved)
    assert set(checkpointer.load(keys=["model"])["model"]["weight"]) == {2.0}
    assert checkpointer.load()["step"] == 1
    assert [info.state for info in checkpointer.steps()] == ["damaged", "committed"]
    flip(saved, 1, BLOCK_BYTES + 5)  # the weights
    with pytest.raises(NoUsableCheckpoint, match="none of the 2"):
        checkpointer.load()
    with pytest.raises(NoUsableCheckpoint, match="differs from what was saved between"):
        checkpointer.load(keys=["model"], step=1)
    # The whole step stays marked, although a part of it could be loaded.
    assert checkpointer.load(keys=["model"])["model"]["bias"].tolist() == [2, 2, 2]
    assert [info.state for info in checkpointer.steps()] == ["damaged", "damaged"]


def test_keys__into_objects(saved: Path, new_model: type[Model]) -> None:
    model, moments = new_model(), [np.zeros(LARGE), np.zeros(2)]
    moments[1] = moments[1].astype(np.int64)
    Checkpointer(saved).load(into={"model": model}, keys=["model"])
    assert set(model.state["weight"]) == {2.0}
    flip(saved, 2, -BLOCK_BYTES)
    Checkpointer(saved).load(into={"optimizer": {"moments": moments}}, keys=[("optimizer", "moments")])
    assert set(moments[0]) == {-1.0}
    assert moments[1].tolist() == [-1, -1]


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        (["weights"], r"state has no 'weights'; it has 'step', 'model', 'optimizer'"),
        ([("model", "scale")], r"state\['model'\] has no 'scale'; it has 'weight', 'bias'"),
        ([("step", 0)], r"state\['step'\] is no dict"),
        ([("optimizer", "moments", 0)], r"state\['optimizer'\]\['moments'\] is no dict"),
    ],
)
def test_keys__that_do_not_exist_name_the_known_ones(saved: Path, keys: list[Any], text: str) -> None:
    for into in (None, {}):
        with pytest.raises(CheckpointError, match=text):
            Checkpointer(saved).load(keys=keys, into=into)


def test_lazy__reads_an_array_when_it_is_needed(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    real = BlockReader._fetch

    def fetch(reader: BlockReader, number: int, **how: Any) -> Any:
        read.append(number)
        return real(reader, number, **how)

    monkeypatch.setattr(BlockReader, "_fetch", fetch)
    state = Checkpointer(saved).load(lazy=True)
    assert set(read) == {0}  # the header
    assert state["step"] == 2
    assert type(state["model"]) is OrderedDict
    weight = state["model"]["weight"]
    assert (weight.shape, weight.dtype, weight.nbytes) == ((LARGE,), "float64", 8 * LARGE)
    assert "shape=" in repr(weight)
    read.clear()
    assert set(weight.load()) == {2.0}
    assert set(read) == {0, 1, 2, 3}
    assert np.asarray(state["model"]["bias"]).tolist() == [2, 2, 2]
    assert np.asarray(weight, np.float32).dtype == np.float32
    with pytest.raises(ValueError, match="a copy of it is needed"):
        np.asarray(weight, copy=False)
    weight.load()[:] = 7
    assert set(weight.load()) == {2.0}  # anew each time


def test_lazy__finds_damage_when_it_reads_it(saved: Path) -> None:
    flip(saved, 2, -BLOCK_BYTES)  # the moments
    state = Checkpointer(saved).load(lazy=True)
    assert set(state["model"]["weight"].load()) == {2.0}
    with pytest.raises(CheckpointError, match="differs from what was saved"):
        state["optimizer"]["moments"][0].load()
    flip(saved, 2, 100)  # the header: there is nothing to return
    assert Checkpointer(saved).load(lazy=True)["step"] == 1


def test_lazy__with_keys_and_without_into(saved: Path) -> None:
    state = Checkpointer(saved).load(lazy=True, keys=[("model", "bias")])
    assert list(state) == ["model"]
    assert state["model"]["bias"].load().tolist() == [2, 2, 2]
    with pytest.raises(ValueError, match="not both"):
        Checkpointer(saved).load(into={}, lazy=True)


def test_lazy__what_has_no_shape_is_loaded_at_once(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    with Checkpointer(tmp_path) as checkpointer:
        checkpointer.save(1, {"raw": b"abc", "t": torch.arange(3, dtype=torch.bfloat16), "n": np.float32(1.5)})
        state = checkpointer.load(lazy=True)
    assert state["raw"] == b"abc"
    assert torch.equal(state["t"].load(), torch.arange(3, dtype=torch.bfloat16))


def test_lazy__checkpoint_that_was_removed_meanwhile(saved: Path) -> None:
    state = Checkpointer(saved).load(lazy=True)
    for path in saved.glob("*.safetensors"):
        path.unlink()
    with pytest.raises(CheckpointError, match="is missing"):
        state["model"]["weight"].load()
