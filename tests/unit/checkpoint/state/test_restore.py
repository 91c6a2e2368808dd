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
