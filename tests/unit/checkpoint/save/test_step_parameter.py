"""The step of a call is determined by the signature of the function."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from perdure.checkpoint import CheckpointError, latest, load_checkpoint, save_checkpoint
from unit.checkpoint.training_program import CommittedSteps

WriteFile = Callable[[int], int]


@pytest.fixture
def write(save_dir: Path) -> WriteFile:
    return lambda step: (save_dir / f"model_{step}.pt").write_bytes(b"x")


class Integer:
    """An integer of some framework: a tensor of one element."""

    def __index__(self) -> int:
        return 12


@pytest.mark.parametrize("step", [12, np.int64(12), np.uint8(12), 12.0, np.float32(12), Integer()])
def test_step_parameter__accepts_any_integer_type(save_dir: Path, write: WriteFile, step: object) -> None:
    save_checkpoint(save_dir)(lambda step: write(12))(step)
    assert latest(save_dir) == 12


@pytest.mark.parametrize("step", [None, "12", 1.5, float("nan"), float("inf"), -1, [12]])
def test_step_parameter__rejects_other_values_before_the_call(save_dir: Path, step: object) -> None:
    calls = []
    save = save_checkpoint(save_dir)(lambda step: (calls.append(step),))
    with pytest.raises(TypeError, match="step must be a whole number"):
        save(step)
    assert calls == []


def test_step_parameter__after_the_model_or_keyword_only(save_dir: Path, write: WriteFile) -> None:
    @save_checkpoint(save_dir)
    def model_first(model: object, step: int) -> None:
        write(step)

    @save_checkpoint(save_dir)
    def keyword_only(model: object, *, step: int) -> None:
        write(step)

    @save_checkpoint(save_dir)
    def with_default(model: object, step: int = 3) -> None:
        write(step)

    model_first("m", 1)
    keyword_only("m", step=2)
    with_default("m")
    assert latest(save_dir) == 3
    assert sorted(path.name for path in save_dir.glob("*.pt")) == ["model_1.pt", "model_2.pt", "model_3.pt"]


def test_step_parameter__of_methods_class_methods_and_partials(save_dir: Path, write: WriteFile) -> None:
    class Trainer:
        @save_checkpoint(save_dir)
        def save(self, step: int) -> None:
            write(step)

        @staticmethod
        @save_checkpoint(save_dir)
        def save_static(step: int) -> None:
            write(step)

        @load_checkpoint(save_dir)
        def load(self, step: int) -> tuple[Trainer, int]:
            return self, step

    trainer = Trainer()
    trainer.save(4)
    Trainer.save_static(step=5)
    save_checkpoint(save_dir)(functools.partial(lambda model, step: write(step), "m"))(step=6)
    assert trainer.load() == (trainer, 6)
    assert trainer.load(0) == (trainer, 6)
    assert trainer.load(step=None) == (trainer, 6)


@pytest.mark.parametrize("name", ["global_step", "iteration", "epoch", "current_iter", "num_steps"])
def test_step_parameter__accepts_similar_names(save_dir: Path, write: WriteFile, name: str) -> None:
    names: dict[str, Any] = {}
    exec(f"def save(model, {name}):\n    write({name})", {"write": write}, names)
    save_checkpoint(save_dir)(names["save"])("m", 8)
    assert latest(save_dir) == 8


@pytest.mark.parametrize("name", ["steps_per_epoch", "max_steps", "total_epochs", "save_every_step", "warmup_steps"])
def test_step_parameter__number_that_stays_the_same_is_none(save_dir: Path, write: WriteFile, name: str) -> None:
    names: dict[str, Any] = {}
    exec(f"def save({name}, model, it):\n    write(it)", {"write": write}, names)
    with pytest.raises(TypeError, match="no parameter for the step; call it `step`"):
        save_checkpoint(save_dir)(names["save"])
    exec(f"def save({name}, model, epoch):\n    write(epoch)", {"write": write}, names)
    save_checkpoint(save_dir)(names["save"])(100, "m", 3)
    assert latest(save_dir) == 3


def test_step_parameter__prefers_the_exact_name(save_dir: Path, write: WriteFile) -> None:
    @save_checkpoint(save_dir)
    def save(epoch: int, step: int) -> None:
        write(step)

    save(1, 200)
    assert latest(save_dir) == 200


@pytest.mark.parametrize("decorator", [save_checkpoint, load_checkpoint])
def test_step_parameter__rejects_functions_that_cannot_be_decorated(
    save_dir: Path, decorator: Callable[..., Any]
) -> None:
    async def coroutine(step: int) -> None: ...

    def generator(step: int) -> Iterator[int]:
        yield step

    class Asynchronous:
        async def __call__(self, step: int) -> None: ...

    for function in (coroutine, generator, Asynchronous()):
        with pytest.raises(TypeError, match=r"asyncio\.to_thread"):
            decorator(save_dir)(function)
    for without_step in (lambda model: None, lambda *args: None, lambda **options: None):
        with pytest.raises(TypeError, match="no parameter for the step"):
            decorator(save_dir)(without_step)
    with pytest.raises(TypeError, match="is not a function"):
        decorator(save_dir)("model")


@pytest.mark.parametrize("decorator", [save_checkpoint, load_checkpoint])
def test_decorator__without_parentheses_is_an_error(decorator: Callable[..., Any]) -> None:
    with pytest.raises(TypeError, match=r"save_dir=\.\.\."):

        @decorator
        def save_model(step: int, model: object) -> None: ...


def test_require_result__rejects_awaitables(save_dir: Path, write: WriteFile, committed: CommittedSteps) -> None:
    async def later(step: int) -> None:
        write(step)

    def hidden(step: int) -> Awaitable[None]:
        return later(step)

    with pytest.raises(CheckpointError, match="awaitable"):
        save_checkpoint(save_dir)(hidden)(1)
    assert committed(save_dir) == []


def test_decorator__call_with_wrong_arguments_raises_type_error(save_dir: Path) -> None:
    save = save_checkpoint(save_dir)(lambda step, model: None)
    with pytest.raises(TypeError, match="model"):
        save(1)  # type: ignore[call-arg]


def test_decorator__keeps_name_and_docstring(save_dir: Path) -> None:
    def save_model(step: int, model: object) -> None:
        """Save it."""

    for decorated in (save_checkpoint(save_dir)(save_model), load_checkpoint(save_dir)(save_model)):
        assert (decorated.__name__, decorated.__doc__, decorated.__wrapped__) == ("save_model", "Save it.", save_model)


class TestLoading:
    """Where the step goes in the call of a load function."""

    @pytest.fixture(autouse=True)
    def _saved(self, save_dir: Path, write: WriteFile) -> None:
        save_checkpoint(save_dir)(write)(7)

    def test_with_step__step_first(self, save_dir: Path) -> None:
        load = load_checkpoint(save_dir)(lambda step, model="default": (step, model))
        model = object()
        expected = (7, model)
        assert load(0, model) == expected
        assert load(None, model) == expected
        assert load(step=0, model=model) == expected
        assert load(model=model) == expected
        assert load(model) == expected  # never replaced by a number
        assert load() == (7, "default")
        assert load(3) == (7, "default")

    def test_with_step__step_last(self, save_dir: Path) -> None:
        load = load_checkpoint(save_dir)(lambda model, step=None: (model, step))
        assert load("m") == ("m", 7)
        assert load("m", 0) == ("m", 7)
        assert load(model="m") == ("m", 7)

    def test_with_step__placeholder_of_another_type(self, save_dir: Path) -> None:
        load = load_checkpoint(save_dir)(lambda step, model: (step, model))
        assert load("latest", "m") == (7, "m")

    def test_with_step__keyword_only(self, save_dir: Path) -> None:
        @load_checkpoint(save_dir)
        def load(model: object, *, step: int) -> tuple[object, int]:
            return model, step

        assert load("m") == load("m", step=1) == ("m", 7)

    def test_with_step__positional_only(self, save_dir: Path) -> None:
        @load_checkpoint(save_dir)
        def load(step: int, /, model: object) -> tuple[int, object]:
            return step, model

        assert load(0, "m") == load("m") == load(model="m") == (7, "m")
