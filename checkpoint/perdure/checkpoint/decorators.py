"""`save_checkpoint` and `load_checkpoint`: decorators over functions that write and read checkpoints themselves.

What they do lives in `binding`, `saving` and `loading`, which are imported when a function is first decorated or
called.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from perdure.checkpoint.save_dir import SaveDir, root_of

if TYPE_CHECKING:
    from typing_extensions import ParamSpec

    from perdure.checkpoint.loading import LoadResult

    P = ParamSpec("P")

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class Loader(Protocol[T_co]):
    """A decorated load function. `last_result`: what its last call did; None before the first."""

    last_result: LoadResult | None

    def __call__(self, *args: Any, **kwargs: Any) -> T_co | None: ...


def save_checkpoint(
    save_dir: SaveDir,
    max_checkpoints: int | None = 5,
    checkpoint_prefix: str = "checkpoint",
    *,
    metadata: Mapping[str, Any] | None = None,
    ignore: Sequence[str] = (),
) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Make a function that writes a checkpoint into one that commits it.

    The function writes below `save_dir`, under any names, files or folders: what it created or changed there during the
    call is the checkpoint of its `step`. Give the files names with the step in them, so that older steps stay whole; of
    those the newest `max_checkpoints` are kept (None: all). Save all that must be loaded together in one call, on one
    process.

        @save_checkpoint(save_dir="checkpoints")
        def save_model(step, model):
            torch.save(model.state_dict(), f"checkpoints/model_{step}.pt")

    `checkpoint_prefix` names a series; series in one directory are kept and loaded apart. `metadata` is stored with
    every checkpoint, as JSON (what JSON does not know as its text). `ignore`: patterns (`*.log`) of files that are no
    part of it. A relative `save_dir` is taken from the working directory of each call; a function as `save_dir` is
    asked at each call.

    The decorated function calls the original exactly once, returns what it returned and raises what it raised. It
    raises CheckpointError when nothing (or an empty file) was written or the commit failed, and CheckpointUnavailable
    when the bucket that `save_dir` lies in is not mounted. Decorating raises TypeError for a function without a step
    parameter and for coroutines, ValueError for `max_checkpoints` below 1.
    """
    from perdure.checkpoint import binding

    binding.check_series(save_dir, checkpoint_prefix, decorator="save_checkpoint")
    if max_checkpoints is not None and max_checkpoints < 1:
        raise ValueError(f"max_checkpoints must be at least 1, or None to keep all, not {max_checkpoints}")
    if isinstance(ignore, str):
        ignore = [ignore]

    def decorate(function: Callable[P, T]) -> Callable[P, T]:
        parameter = binding.StepParameter.of(function, decorator="save_checkpoint")

        @functools.wraps(function)
        def save(*args: P.args, **kwargs: P.kwargs) -> T:
            from perdure.checkpoint import saving
            from perdure.checkpoint.keep import Keep

            step = parameter.of_call(args, kwargs)
            root = root_of(save_dir)
            keep = None if max_checkpoints is None else Keep(max_checkpoints)
            series = saving.Series(root, checkpoint_prefix, keep, metadata or {}, tuple(ignore))
            return saving.save(series, step, lambda: binding.finished(function(*args, **kwargs), function))

        return save

    return decorate


def load_checkpoint(
    save_dir: SaveDir, checkpoint_prefix: str = "checkpoint", *, verify: str = "full"
) -> Callable[[Callable[..., T]], Loader[T]]:
    """Make a function that reads the checkpoint of a step into one that reads the newest whole one.

        @load_checkpoint(save_dir="checkpoints")
        def load_model(step, model):
            model.load_state_dict(torch.load(f"checkpoints/model_{step}.pt"))

    The decorated function may be called with any step, None, or none at all (`load_model(model=model)`): the step of
    the checkpoint takes its place. It returns what the original returned, and None without calling it when nothing was
    saved yet; `load_model.last_result` tells which step was loaded and why newer ones were skipped. The files of a
    checkpoint are compared with the digests in its manifest before the function sees them; that holds for the files of
    the step it is given, so it must name its files by that step. `verify`: how closely: "full" reads every byte, which
    costs one pass over the files; "sampled" and "size" are quicker and miss damage (`perdure.checkpoint.samples`).

    It raises what the original raised; NoUsableCheckpoint when checkpoints exist and all are broken; and
    CheckpointUnavailable when they can not be read now, or their bucket is not mounted.
    """
    from perdure.checkpoint import binding, samples

    binding.check_series(save_dir, checkpoint_prefix, decorator="load_checkpoint")
    samples.checked(verify)

    def decorate(function: Callable[..., T]) -> Loader[T]:
        parameter = binding.StepParameter.of(function, decorator="load_checkpoint")

        @functools.wraps(function)
        def load(*args: Any, **kwargs: Any) -> T | None:
            from perdure.checkpoint import loading

            def call(step: int) -> T:
                placed, named = parameter.put(step, args, kwargs)
                return binding.finished(function(*placed, **named), function)

            loader.last_result = None
            loader.last_result, value = loading.load(root_of(save_dir), checkpoint_prefix, call, verify=verify)
            return value

        loader: Loader[T] = load  # type: ignore[assignment]
        loader.last_result = None
        return loader

    return decorate
