"""What a load puts into the program's own objects: exactly what was saved, or nothing at all."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from perdure.checkpoint.errors import CheckpointError
from perdure.checkpoint.state.restore import restore_into


class Counting:
    """An object with a state that accepts whole numbers only."""

    def __init__(self, count: int = 0) -> None:
        self.count = count

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = -1
        if not isinstance(state["count"], int):
            raise KeyError("count")
        self.count = state["count"]


@pytest.mark.parametrize(
    ("mine", "saved"),
    [
        (np.zeros(1, np.int64), np.array([1.5])),
        (np.zeros(1, np.float16), np.array([70000.0])),
        (np.zeros(1, np.float32), np.array([1 + 2**-40])),
        (np.zeros(1, np.int8), np.array([300], np.int16)),
        (np.zeros(1, np.complex64), np.zeros(1, np.float32)),
    ],
)
def test_restore__converts_no_elements(mine: np.ndarray[Any, Any], saved: np.ndarray[Any, Any]) -> None:
    state = {"first": np.ones(2), "x": saved}
    into = {"first": np.zeros(2), "x": mine}
    with pytest.raises(CheckpointError, match=r"state\['x'\]: the checkpoint has elements of .* change numbers"):
        restore_into(into, state)
    assert into["first"].tolist() == [0, 0]


@pytest.mark.parametrize(
    ("mine", "saved", "text"),
    [
        ({"w": 1}, [1], "has a list instead of a dict"),
        ([1], {"w": 1}, "has a dict instead of a list or tuple"),
        (np.zeros(2), 0.5, "has a float instead of an array"),
    ],
)
def test_restore__replaces_no_structure_by_another(mine: object, saved: object, text: str) -> None:
    with pytest.raises(CheckpointError, match=text):
        restore_into({"x": mine}, {"x": saved})


def test_restore__object_that_rejects_its_part_leaves_everything_as_it_was() -> None:
    first, second, array = Counting(1), Counting(2), np.zeros(2)
    state = {"array": np.ones(2), "first": {"count": 7}, "second": {"count": "seven"}}
    with pytest.raises(CheckpointError, match=r"state\['second'\]: Counting rejects .*Nothing was loaded"):
        restore_into({"array": array, "first": first, "second": second}, state)
    assert (first.count, second.count, array.tolist()) == (1, 2, [0, 0])


def test_restore__fills_arrays_of_another_byte_order_and_keeps_tuples() -> None:
    into = (np.zeros(2, ">f8"), [None, 0])
    array = into[0]
    restored = restore_into(into, (np.array([1.5, 2]), ["x", 3]))
    assert restored[0] is array
    assert array.tolist() == [1.5, 2]
    assert restored[1] == ["x", 3]


class TestTorch:
    @pytest.fixture(autouse=True)
    def _torch(self) -> None:
        self.torch = pytest.importorskip("torch")

    def layers(self, width: int = 3, dtype: Any = None) -> Any:
        nn = self.torch.nn
        return nn.Sequential(nn.Linear(2, 2, dtype=dtype), nn.Linear(2, width, dtype=dtype))

    def test_restore__module_that_does_not_fit_keeps_its_first_layers(self) -> None:
        model, saved = self.layers(4), self.layers(3).state_dict()
        before = {name: value.clone() for name, value in model.state_dict().items()}
        with pytest.raises(CheckpointError, match=r"state\['model'\]\['1.weight'\]: the checkpoint has the shape"):
            restore_into({"model": model}, {"model": saved})
        assert all(self.torch.equal(before[name], value) for name, value in model.state_dict().items())

    def test_restore__module_of_another_precision_is_rejected(self) -> None:
        model, saved = self.layers(dtype=self.torch.float16), self.layers().state_dict()
        with pytest.raises(CheckpointError, match="has elements of float32 instead of float16"):
            restore_into({"model": model}, {"model": saved})

    def test_restore__optimizer_that_does_not_fit_leaves_the_model_as_it_was(self) -> None:
        model, other = self.layers(), self.layers()
        optimizer = self.torch.optim.Adam(model.parameters())
        fewer = self.torch.optim.Adam(list(other.parameters())[:2]).state_dict()
        before = model[0].weight.detach().clone()
        with pytest.raises(CheckpointError, match=r"has groups of \[2\] parameters instead of \[4\]"):
            restore_into({"model": model, "optimizer": optimizer}, {"model": other.state_dict(), "optimizer": fewer})
        assert self.torch.equal(model[0].weight, before)

    def test_restore__optimizer_whose_moments_would_be_converted_is_rejected(self) -> None:
        model = self.layers(dtype=self.torch.bfloat16)
        optimizer = self.torch.optim.Adam(model.parameters())
        model(self.torch.ones(1, 2, dtype=self.torch.bfloat16)).sum().backward()
        optimizer.step()
        saved = optimizer.state_dict()
        restore_into({"optimizer": optimizer}, {"optimizer": saved})
        for moments in saved["state"].values():
            moments["exp_avg"] = moments["exp_avg"].float()
        with pytest.raises(CheckpointError, match=r"\['exp_avg'\]: the checkpoint has elements of torch.float32"):
            restore_into({"optimizer": optimizer}, {"optimizer": saved})

    def test_restore__module_with_a_hook_for_old_names_loads_them(self) -> None:
        model, saved = self.layers(), self.layers().state_dict()
        old = {name.replace("1.", "head."): value for name, value in saved.items()}

        def rename(state: dict[str, Any], *_: Any) -> None:
            for name in [name for name in state if name.startswith("head.")]:
                state[name.replace("head.", "1.")] = state.pop(name)

        model._register_load_state_dict_pre_hook(rename)
        restore_into({"model": model}, {"model": old})
        assert self.torch.equal(model[1].weight, saved["1.weight"])

    def test_restore__tensors_and_arrays_fill_each_other(self) -> None:
        tensor, array = self.torch.zeros(2), np.zeros(2, np.float32)
        restore_into([tensor, array], [np.array([1, 2], ">f4"), self.torch.tensor([3.0, 4.0])])
        assert (tensor.tolist(), array.tolist()) == ([1, 2], [3, 4])


def overlapping_rows() -> np.ndarray[Any, Any]:
    return np.lib.stride_tricks.sliding_window_view(np.zeros(4), 3, writeable=True)


def test_restore__rejects_an_array_whose_elements_overlap() -> None:
    into = {"first": np.zeros(2), "x": overlapping_rows()}
    with pytest.raises(CheckpointError, match=r"state\['x'\]: elements of your array have memory in common"):
        restore_into(into, {"first": np.ones(2), "x": np.ones((2, 3))})
    assert into["first"].tolist() == [0, 0]


def test_restore__rejects_arrays_that_overlap_each_other() -> None:
    memory = np.zeros(4)
    into = {"a": memory[:3], "b": memory[1:]}
    with pytest.raises(CheckpointError, match=r"state\['a'\] and state\['b'\]: your arrays have memory in common"):
        restore_into(into, {"a": np.arange(3.0), "b": np.arange(3.0) + 10})
    assert memory.tolist() == [0, 0, 0, 0]


def test_restore__tied_arrays_have_the_same_content() -> None:
    tied = np.zeros(2)
    restore_into({"a": tied, "b": [tied]}, {"a": np.ones(2), "b": [np.ones(2)]})
    assert tied.tolist() == [1, 1]
    with pytest.raises(CheckpointError, match="different content"):
        restore_into({"a": tied, "b": [tied]}, {"a": np.ones(2), "b": [np.array([1.0, -1.0])]})
    assert tied.tolist() == [1, 1]


def test_restore__fills_columns_of_one_matrix() -> None:
    matrix = np.zeros((3, 2))
    restore_into(list(matrix.T), [np.ones(3), np.full(3, 2.0)])
    assert matrix.tolist() == [[1, 2]] * 3


def test_restore__replaces_an_array_that_is_read_only_and_broadcast() -> None:
    into = restore_into({"x": np.broadcast_to(np.zeros(1), (3,))}, {"x": np.arange(3.0)})
    assert into["x"].tolist() == [0, 1, 2]


def test_restore__rejects_tensors_without_memory() -> None:
    torch = pytest.importorskip("torch")
    with torch.device("meta"):
        module = torch.nn.Linear(2, 2)
    weights = torch.nn.Linear(2, 2).state_dict()
    for into, state in ((module, weights), (torch.zeros(2, device="meta"), torch.ones(2))):
        with pytest.raises(CheckpointError, match="is on the meta device"):
            restore_into({"x": into}, {"x": state})


def test_restore__untied_weights_do_not_fit_tied_ones() -> None:
    torch = pytest.importorskip("torch")
    tied, untied = ({"a": torch.nn.Linear(2, 2), "b": torch.nn.Linear(2, 2)} for _ in range(2))
    tied["b"].weight = tied["a"].weight
    saved = {name: {key: value.clone() for key, value in one.state_dict().items()} for name, one in untied.items()}
    before = tied["a"].weight.clone()
    with pytest.raises(CheckpointError, match="have memory in common"):
        restore_into(tied, saved)
    assert torch.equal(tied["a"].weight, before)
    saved["b"]["weight"] = saved["a"]["weight"].clone()
    restore_into(tied, saved)
    assert torch.equal(tied["b"].weight, saved["a"]["weight"])
