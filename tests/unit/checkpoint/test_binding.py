"""The step is found by the function's signature, whatever stands around it."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from perdure.checkpoint import CheckpointError, latest, load_checkpoint, save_checkpoint


@pytest.fixture
def write(save_dir):
    return lambda step: (save_dir / f"model_{step}.pt").write_bytes(b"x")


class Integer:
    """An integer of some framework: a tensor of one element."""

    def __index__(self):
        return 12


@pytest.mark.parametrize("step", [12, np.int64(12), np.uint8(12), 12.0, np.float32(12), Integer()])
def test_steps_of_any_integer_type(save_dir, write, step):
    save_checkpoint(save_dir)(lambda step: write(12))(step)
    assert latest(save_dir) == 12


@pytest.mark.parametrize("step", [None, "12", 1.5, float("nan"), float("inf"), -1, [12]])
def test_what_is_no_step_is_refused_before_the_call(save_dir, step):
    calls = []
    save = save_checkpoint(save_dir)(lambda step: (calls.append(step),))
    with pytest.raises(TypeError, match="step must be a whole number"):
        save(step)
    assert calls == []


def test_model_first_and_keyword_only(save_dir, write):
    @save_checkpoint(save_dir)
    def model_first(model, step):
        write(step)

    @save_checkpoint(save_dir)
    def keyword_only(model, *, step):
        write(step)

    @save_checkpoint(save_dir)
    def with_default(model, step=3):
        write(step)

    model_first("m", 1)
    keyword_only("m", step=2)
    with_default("m")
    assert latest(save_dir) == 3
    assert sorted(path.name for path in save_dir.glob("*.pt")) == ["model_1.pt", "model_2.pt", "model_3.pt"]


def test_methods_class_methods_and_partials(save_dir, write):
    class Trainer:
        @save_checkpoint(save_dir)
        def save(self, step):
            write(step)

        @staticmethod
        @save_checkpoint(save_dir)
        def save_static(step):
            write(step)

        @load_checkpoint(save_dir)
        def load(self, step):
            return self, step

    trainer = Trainer()
    trainer.save(4)
    Trainer.save_static(step=5)
    save_checkpoint(save_dir)(functools.partial(lambda model, step: write(step), "m"))(step=6)
    assert trainer.load() == (trainer, 6)
    assert trainer.load(0) == (trainer, 6)
    assert trainer.load(step=None) == (trainer, 6)


@pytest.mark.parametrize("name", ["global_step", "iteration", "epoch", "current_iter", "num_steps"])
def test_parameters_called_like_a_step(save_dir, write, name):
    names = {}
    exec(f"def save(model, {name}):\n    write({name})", {"write": write}, names)
    save_checkpoint(save_dir)(names["save"])("m", 8)
    assert latest(save_dir) == 8


def test_step_is_preferred_to_what_is_like_it(save_dir, write):
    @save_checkpoint(save_dir)
    def save(epoch, step):
        write(step)

    save(1, 200)
    assert latest(save_dir) == 200


@pytest.mark.parametrize("decorator", [save_checkpoint, load_checkpoint])
def test_what_can_not_be_decorated(save_dir, decorator):
    async def coroutine(step): ...

    def generator(step):
        yield step

    class Asynchronous:
        async def __call__(self, step): ...

    for function in (coroutine, generator, Asynchronous()):
        with pytest.raises(TypeError, match=r"asyncio\.to_thread"):
            decorator(save_dir)(function)
    for function in (lambda model: None, lambda *args: None, lambda **options: None):
        with pytest.raises(TypeError, match="no parameter for the step"):
            decorator(save_dir)(function)
    with pytest.raises(TypeError, match="is not a function"):
        decorator(save_dir)("model")


@pytest.mark.parametrize("decorator", [save_checkpoint, load_checkpoint])
def test_missing_parentheses(decorator):
    with pytest.raises(TypeError, match=r"save_dir=\.\.\."):

        @decorator
        def save_model(step, model): ...


def test_result_that_is_still_to_come_is_refused(save_dir, write, committed):
    async def later(step):
        write(step)

    def hidden(step):
        return later(step)

    with pytest.raises(CheckpointError, match="awaitable"):
        save_checkpoint(save_dir)(hidden)(1)
    assert committed(save_dir) == []


def test_call_that_does_not_fit_is_the_callers_error(save_dir):
    save = save_checkpoint(save_dir)(lambda step, model: None)
    with pytest.raises(TypeError, match="model"):
        save(1)


def test_decorated_functions_keep_their_face(save_dir):
    def save_model(step: int, model):
        """Save it."""

    for decorated in (save_checkpoint(save_dir)(save_model), load_checkpoint(save_dir)(save_model)):
        assert (decorated.__name__, decorated.__doc__, decorated.__wrapped__) == ("save_model", "Save it.", save_model)


class TestLoading:
    """Where the step goes in the call of a load function."""

    @pytest.fixture(autouse=True)
    def _saved(self, save_dir, write):
        save_checkpoint(save_dir)(write)(7)

    def test_step_first(self, save_dir):
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

    def test_step_last(self, save_dir):
        load = load_checkpoint(save_dir)(lambda model, step=None: (model, step))
        assert load("m") == ("m", 7)
        assert load("m", 0) == ("m", 7)
        assert load(model="m") == ("m", 7)

    def test_placeholder_of_another_type(self, save_dir):
        load = load_checkpoint(save_dir)(lambda step, model: (step, model))
        assert load("latest", "m") == (7, "m")

    def test_keyword_only(self, save_dir):
        @load_checkpoint(save_dir)
        def load(model, *, step):
            return model, step

        assert load("m") == load("m", step=1) == ("m", 7)

    def test_positional_only(self, save_dir):
        @load_checkpoint(save_dir)
        def load(step, /, model):
            return step, model

        assert load(0, "m") == load("m") == load(model="m") == (7, "m")
