"""`save_checkpoint` and `load_checkpoint`: decorators over functions that write and read checkpoints themselves.

The work is done in `save.step_parameter`, `save.function_save` and `load.function_load`, which are imported when a
function is first decorated or called.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from perdure.checkpoint.format.save_dir import SaveDir, root_of

if TYPE_CHECKING:
    from typing_extensions import ParamSpec

    from perdure.checkpoint.load.function_load import LoadResult

    P = ParamSpec("P")

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class LoadFunction(Protocol[T_co]):
    """A decorated load function."""

    last_result: LoadResult | None  # what its last call did; None before the first call

    def __call__(self, *args: Any, **kwargs: Any) -> T_co | None: ...


def save_checkpoint(
    save_dir: SaveDir,
    max_checkpoints: int | None = 5,
    checkpoint_prefix: str = "checkpoint",
    *,
    metadata: Mapping[str, Any] | None = None,
    ignore: Sequence[str] = (),
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate a function that writes a checkpoint, so that what it wrote is committed.

    The function writes files or folders of any name below `save_dir`. Those that it created or changed during the call
    are the checkpoint of its `step`. Put the step into the names of the files, so that older steps stay whole. The
    newest `max_checkpoints` are kept (None: all). Save everything that must be loaded together in one call, in one
    process.

        @save_checkpoint(save_dir="checkpoints")
        def save_model(step, model):
            torch.save(model.state_dict(), f"checkpoints/model_{step}.pt")

    `checkpoint_prefix` names a series; series in one directory are kept and loaded separately. Several functions may
    share a series: the newest `max_checkpoints` of each are kept. `metadata` is stored with every checkpoint, as JSON
    (values that JSON does not support, as text). `ignore`: patterns (`*.log`) of files that are not part of it. A
    relative `save_dir` is resolved in the working directory of each call; a function as `save_dir` is called at each
    call. While another program on this machine saves into `save_dir`, the call waits.

    The decorated function calls the original exactly once, returns what it returned and raises what it raised. It
    raises CheckpointError when nothing (or an empty file) was written or the commit failed, and CheckpointUnavailable
    when `save_dir` belongs on a bucket's mount that is missing. Decorating raises TypeError for a function without a
    step parameter and for coroutines, ValueError for `max_checkpoints` below 1.
    """
    from perdure.checkpoint.save import step_parameter

    step_parameter.validate_series(save_dir, checkpoint_prefix, decorator="save_checkpoint")
    from perdure.checkpoint.save.retention.keep_rule import as_rule

    keep = as_rule(max_checkpoints, "max_checkpoints")
    if isinstance(ignore, str):
        ignore = [ignore]

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        parameter = step_parameter.StepParameter.from_function(function, decorator="save_checkpoint")

        @functools.wraps(function)
        def save(*args: P.args, **kwargs: P.kwargs) -> T:
            from perdure.checkpoint.save import finish_step, function_save

            step = parameter.step_of_call(args, kwargs)
            root = root_of(save_dir)
            series = finish_step.Series(
                root, checkpoint_prefix, keep, metadata or {}, tuple(ignore), function=step_parameter.name_of(function)
            )
            return function_save.save(
                series, step, lambda: step_parameter.require_result(function(*args, **kwargs), function)
            )

        return save

    return decorate


def load_checkpoint(
    save_dir: SaveDir, checkpoint_prefix: str = "checkpoint", *, verify: str = "full"
) -> Callable[[Callable[..., T]], LoadFunction[T]]:
    """Decorate a function that reads the checkpoint of a step, so that it reads the newest whole one.

        @load_checkpoint(save_dir="checkpoints")
        def load_model(step, model):
            model.load_state_dict(torch.load(f"checkpoints/model_{step}.pt"))

    The decorated function may be called with any step, with None, or without one (`load_model(model=model)`): the step
    of the checkpoint takes its place. It returns what the original returned. If nothing was saved yet, it returns None
    without calling the original. `load_model.last_result` has the step that was loaded and why newer ones were skipped.

    The files of a checkpoint are compared with its manifest before the function is called. That covers the files of the
    step that it receives, so it must derive the names of its files from that step. `verify`: "full" reads every byte,
    which costs one pass over the files; "sampled" and "size" are faster and miss damage (`format.sampling`).

    It raises what the original raised; NoUsableCheckpoint when checkpoints exist and all are damaged; and
    CheckpointUnavailable when they cannot be read now, or their bucket is not mounted.
    """
    from perdure.checkpoint.format import sampling
    from perdure.checkpoint.save import step_parameter

    step_parameter.validate_series(save_dir, checkpoint_prefix, decorator="load_checkpoint")
    sampling.check_mode(verify)

    def decorate(function: Callable[..., T]) -> LoadFunction[T]:
        parameter = step_parameter.StepParameter.from_function(function, decorator="load_checkpoint")

        @functools.wraps(function)
        def load(*args: Any, **kwargs: Any) -> T | None:
            from perdure.checkpoint.load import function_load

            def call(step: int) -> T:
                positional, named = parameter.with_step(step, args, kwargs)
                return step_parameter.require_result(function(*positional, **named), function)

            decorated.last_result = None
            decorated.last_result, value = function_load.load(root_of(save_dir), checkpoint_prefix, call, verify=verify)
            return value

        decorated: LoadFunction[T] = load  # type: ignore[assignment]
        decorated.last_result = None
        return decorated

    return decorate
