"""`load(into=…)`: the program's own arrays are filled in place, by exactly what was saved, or not touched at all."""

from __future__ import annotations

import copy
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.checkpoint import Checkpointer, CheckpointError, NoUsableCheckpoint
from perdure.checkpoint.format.block_digests import BLOCK_BYTES
from perdure.checkpoint.load import state_reader
from perdure.checkpoint.load.part_file import PartFile, Place
from perdure.checkpoint.state import targets
from perdure.checkpoint.state.restore import restore_into
from support.helpers.timing import scaled
from unit.checkpoint.training_program import Model

LARGE = BLOCK_BYTES // 8 + 1000  # float64: a little more than a block


def state_of(step: int) -> dict[str, Any]:
    rng = np.random.default_rng(step)
    return {"step": step, "w": rng.random(LARGE), "many": [rng.random(7) for _ in range(20)], "v": rng.random(LARGE)}


def zeros() -> dict[str, Any]:
    return {"step": 0, "w": np.zeros(LARGE), "many": [np.zeros(7) for _ in range(20)], "v": np.zeros(LARGE)}


def assert_is(loaded: dict[str, Any], expected: dict[str, Any]) -> None:
    assert loaded["step"] == expected["step"]
    for one, other in zip([loaded["w"], *loaded["many"]], [expected["w"], *expected["many"]], strict=True):
        assert np.array_equal(one, other)
    assert np.array_equal(loaded["v"], expected["v"])


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    with Checkpointer(tmp_path) as checkpointer:
        for step in (1, 2):
            checkpointer.save(step, state_of(step))
    return tmp_path


def part_of(directory: Path, step: int) -> Path:
    (path,) = directory.glob(f"checkpoint-{step:012d}-*.safetensors")
    return path


def flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 2]))


@pytest.mark.parametrize("verify", ["full", "sampled", "size"])
def test_into__fills_the_arrays_themselves(saved: Path, verify: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_reader, "large_buffer", None)  # new memory for a large array would fail
    into = zeros()
    before = [into["w"], *into["many"], into["v"]]
    assert Checkpointer(saved).load(into=into, verify=verify) is into
    assert all(one is other for one, other in zip(before, [into["w"], *into["many"], into["v"]], strict=True))
    assert_is(into, state_of(2))


def test_into__needs_no_second_copy_in_memory(tmp_path: Path) -> None:
    program = """
import sys
import numpy as np
from perdure.checkpoint import Checkpointer
def memory(field):
    line = next(line for line in open("/proc/self/status") if line.startswith(field))
    return int(line.split()[1]) // 1024
arrays = {f"a{i}": np.full(6 << 20, i, np.float64) for i in range(4)}
with Checkpointer(sys.argv[1], keep=1) as checkpointer:
    checkpointer.save(1, arrays)
    open("/proc/self/clear_refs", "w").write("5")
    before = memory("VmRSS")
    checkpointer.load(into=arrays)
    assert all((array == i).all() for i, array in enumerate(arrays.values()))
    print(memory("VmHWM") - before)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], check=True, capture_output=True, timeout=scaled(60), text=True
    )
    assert int(done.stdout) <= 128, "MiB, of a state of 192"


@pytest.mark.parametrize("region", ["length", "header", "first block", "second block", "border", "last byte"])
def test_into__damage_anywhere_falls_back_to_the_older_step(saved: Path, region: str) -> None:
    part = part_of(saved, 2)
    size = part.stat().st_size
    places = {
        "length": 0,
        "header": 100,
        "first block": BLOCK_BYTES // 2,
        "second block": BLOCK_BYTES + BLOCK_BYTES // 2,
        "border": BLOCK_BYTES,
        "last byte": size - 1,
    }
    flip(part, places[region])
    checkpointer, into = Checkpointer(saved), zeros()
    checkpointer.load(into=into)
    assert_is(into, state_of(1))
    assert checkpointer.last_result is not None
    assert [step for step, _ in checkpointer.last_result.skipped] == [2]
    flip(part_of(saved, 1), size // 3)
    into = zeros()
    with pytest.raises(NoUsableCheckpoint, match="none of the 2"):
        checkpointer.load(into=into)
    assert_is(into, zeros())


@pytest.fixture
def damaged_meanwhile(saved: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Have a file change after it was verified, and before its last block is read into the arrays."""
    fill = PartFile.fill
    pending: set[int] = set()

    def fill_damaged(part: PartFile, places: list[Place]) -> None:
        for step in [step for step in pending if len(places) > 20 and part_of(saved, step).name in part._path]:
            pending.discard(step)
            flip(part_of(saved, step), part_of(saved, step).stat().st_size - 1)
        fill(part, places)

    monkeypatch.setattr(PartFile, "fill", fill_damaged)
    return pending.add


def test_into__change_after_the_verification_loads_an_older_step_over_it(
    saved: Path, damaged_meanwhile: Callable[[int], None]
) -> None:
    damaged_meanwhile(2)
    checkpointer, into = Checkpointer(saved), zeros()
    checkpointer.load(into=into)
    assert_is(into, state_of(1))
    assert checkpointer.last_result is not None
    assert checkpointer.last_result.step == 1
    assert [step for step, _ in checkpointer.last_result.skipped] == [2]


def test_into__change_after_the_verification_and_no_older_step_is_said(
    saved: Path, damaged_meanwhile: Callable[[int], None]
) -> None:
    damaged_meanwhile(1)
    flip(part_of(saved, 2), 9)
    with pytest.raises(NoUsableCheckpoint, match=r"Step 1 had been verified.*Do not go on with them") as caught:
        Checkpointer(saved).load(into=zeros())
    assert [step for step, _ in caught.value.skipped][:2] == [2, 1]


class Refusing(Model):
    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise ValueError("not this one")


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"w": np.zeros(LARGE + 1)}, "has the shape"),
        ({"v": np.zeros(LARGE, np.int64)}, "has elements of float64 instead of int64"),
        ({"many": [np.zeros(7)] * 19}, "has 20 items instead of 19"),
        ({"other": 1}, "lacks"),
        ({"step": Refusing()}, "Refusing rejects what the checkpoint has .* Nothing was loaded"),
    ],
)
def test_into__what_does_not_fit_changes_nothing(saved: Path, change: dict[str, Any], text: str) -> None:
    into = {**zeros(), **change}
    before = copy.deepcopy({name: value for name, value in into.items() if name != "step"})
    with pytest.raises(CheckpointError, match=text):
        Checkpointer(saved).load(into=into)
    for name in ("w", "v"):
        assert np.array_equal(into[name], before[name])
    assert all(not one.any() for one in into["many"])


def test_into__damage_counts_before_what_does_not_fit(saved: Path) -> None:
    with Checkpointer(saved) as checkpointer:
        checkpointer.save(3, {"other": np.zeros(9)})
        flip(part_of(saved, 3), part_of(saved, 3).stat().st_size - 1)
        into = zeros()
        checkpointer.load(into=into)
    assert_is(into, state_of(2))


def test_into__objects_receive_arrays_of_their_own(saved: Path, new_model: type[Model]) -> None:
    """An object may keep what it receives: that must not be the memory of another one."""
    with Checkpointer(saved) as checkpointer:
        shared = np.arange(5.0)
        checkpointer.save(3, {"array": shared, "model": new_model(w=shared)})
        into = {"array": np.zeros(5), "model": new_model(w=np.zeros(5))}
        checkpointer.load(into=into)
    assert into["array"].tolist() == into["model"].state["w"].tolist() == shared.tolist()
    assert not np.shares_memory(into["array"], into["model"].state["w"])


# --- the same result as loading into new memory and copying ------------------------------------------------------

SOURCES = ["own", "own", "view", "overlapping view", "turned", "foreign", "tied"]


def build(base: np.ndarray[Any, Any], kinds: list[str]) -> dict[str, Any]:
    """Arrays of 3 × 4 elements in the program: of their own, views of one memory, in another order in memory."""
    tied = np.zeros((3, 4))
    made: dict[str, Callable[[int], Any]] = {
        "own": lambda _: np.zeros((3, 4)),
        "view": lambda number: base[12 * number : 12 * number + 12].reshape(3, 4),
        "overlapping view": lambda number: base[5 * number : 5 * number + 12].reshape(3, 4),
        "turned": lambda _: np.zeros((4, 3)).T,
        "foreign": lambda _: np.zeros((3, 4), ">f8"),
        "tied": lambda _: tied,
    }
    return {f"a{number}": made[kind](number) for number, kind in enumerate(kinds)}


@settings(max_examples=40)
@given(st.lists(st.sampled_from(SOURCES), min_size=1, max_size=5), st.data())
def test_into__same_as_a_copy_from_new_memory(
    tmp_path_factory: pytest.TempPathFactory, kinds: list[str], data: st.DataObject
) -> None:
    contents = [np.random.default_rng(seed).random((3, 4)) for seed in range(3)]
    choice = data.draw(st.lists(st.integers(0, 2), min_size=len(kinds), max_size=len(kinds)))
    state = {f"a{number}": contents[chosen] for number, chosen in enumerate(choice)}  # some are one array
    directory = tmp_path_factory.mktemp("same")
    with Checkpointer(directory) as checkpointer:
        checkpointer.save(1, state)
        base, into = np.zeros(100), build(np.zeros(100), kinds)
        try:
            expected = restore_into(into, checkpointer.load())
        except CheckpointError as error:  # arrays with memory in common cannot have different content
            with pytest.raises(CheckpointError, match=re.escape(str(error))):
                checkpointer.load(into=build(base, kinds))
            assert not base.any()
            return
        loaded = checkpointer.load(into=build(base, kinds))
    for name in state:
        assert np.array_equal(loaded[name], expected[name]), name


class TestTorch:
    @pytest.fixture(autouse=True)
    def _torch(self) -> None:
        self.torch = pytest.importorskip("torch")

    def trained(self, seed: int) -> tuple[Any, Any]:
        self.torch.manual_seed(seed)
        nn = self.torch.nn
        model = nn.Sequential(nn.Linear(700, 800), nn.BatchNorm1d(800), nn.Linear(800, 3))
        model.append(nn.Linear(3, 3))
        model[3].weight = nn.Parameter(model[3].weight.t().detach())  # not contiguous
        optimizer = self.torch.optim.AdamW(model.parameters())
        for _ in range(seed):
            optimizer.zero_grad()
            model(self.torch.randn(5, 700)).square().sum().backward()
            optimizer.step()
        return model, optimizer

    def same(self, one: Any, other: Any) -> bool:
        if isinstance(one, self.torch.Tensor):
            return bool(self.torch.equal(one, other))
        if isinstance(one, dict):
            return one.keys() == other.keys() and all(self.same(one[key], other[key]) for key in one)
        if isinstance(one, (list, tuple)):
            return len(one) == len(other) and all(map(self.same, one, other))
        return bool(one == other)

    @pytest.mark.parametrize("steps_before", [0, 2])
    def test_into__module_and_optimizer_keep_their_memory(self, tmp_path: Path, steps_before: int) -> None:
        model, optimizer = self.trained(3)
        saved = copy.deepcopy({"model": model.state_dict(), "optimizer": optimizer.state_dict()})
        mine, own = self.trained(steps_before)
        addresses = [parameter.data_ptr() for parameter in mine.parameters()]
        versions = [parameter._version for parameter in mine.parameters()]
        with Checkpointer(tmp_path) as checkpointer:
            checkpointer.save(1, {"model": model, "optimizer": optimizer})
            checkpointer.load(into={"model": mine, "optimizer": own})
        assert self.same(mine.state_dict(), saved["model"])
        assert self.same(own.state_dict(), saved["optimizer"])
        assert [parameter.data_ptr() for parameter in mine.parameters()] == addresses
        assert all(now._version > before for now, before in zip(mine.parameters(), versions, strict=True))
        for one in (model, mine):
            one.eval()
        batch = self.torch.randn(2, 700)
        assert self.torch.equal(model(batch), mine(batch))

    def test_into__module_with_a_method_of_its_own_is_loaded_by_it(self, tmp_path: Path) -> None:
        torch = self.torch

        class Turned(torch.nn.Module):  # type: ignore[misc,name-defined]
            """Keeps its weight turned."""

            def __init__(self) -> None:
                super().__init__()
                self.weight = torch.nn.Parameter(torch.zeros(50, 50))

            def _load_from_state_dict(self, state: Any, prefix: str, *arguments: Any) -> None:
                state = {**state, prefix + "weight": state[prefix + "weight"].t()}
                super()._load_from_state_dict(state, prefix, *arguments)

        weight = torch.randn(50, 50)
        mine = Turned()
        with Checkpointer(tmp_path) as checkpointer:
            checkpointer.save(1, {"model": {"weight": weight}})
            checkpointer.load(into={"model": mine})
        assert torch.equal(mine.weight, weight.t())

    def test_into__tensor_that_is_written_as_one_of_a_device(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Blocks are copied to a device from several threads; here the device is this machine's memory."""
        torch = self.torch
        tensors = [torch.randn(700, 999), torch.randn(LARGE).to(torch.complex64), torch.tensor(True)]
        tensors += [torch.randn(40).to(torch.bfloat16), torch.arange(3)]
        monkeypatch.setattr(targets, "_to_memory", None)
        real = targets._as_target

        def as_target(own: Any, saved: Any) -> Any:
            monkeypatch.setattr(targets, "_to_memory", lambda _: targets._to_device(torch, own))
            return real(own, saved)

        monkeypatch.setattr(targets, "_as_target", as_target)
        into = [torch.zeros_like(one) for one in tensors]
        with Checkpointer(tmp_path) as checkpointer:
            checkpointer.save(1, tensors)
            checkpointer.load(into=into)
        assert all(map(torch.equal, into, tensors))
