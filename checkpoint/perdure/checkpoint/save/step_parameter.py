"""Which parameter of the user's function is the step, and how it is read from, or inserted into, a call."""

from __future__ import annotations

import inspect
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass
from inspect import Parameter
from typing import TYPE_CHECKING, Any, TypeVar

from perdure.checkpoint.errors import CheckpointError
from perdure.checkpoint.format.save_dir import check_prefix, root_of

if TYPE_CHECKING:
    from perdure.checkpoint.format.save_dir import SaveDir

T = TypeVar("T")

_STEP_WORDS = frozenset({"step", "steps", "iteration", "iterations", "iter", "epoch"})
# With one of these, a name is that of a number that stays the same: `steps_per_epoch`, `max_steps`.
_COUNT_WORDS = frozenset({"per", "max", "min", "total", "every", "interval", "warmup", "size", "length", "log", "eval"})
_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


@dataclass(frozen=True)
class StepParameter:
    """The step parameter of one function."""

    signature: inspect.Signature
    name: str
    position: int | None  # None for a keyword-only parameter

    @classmethod
    def from_function(cls, function: Callable[..., Any], *, decorator: str) -> StepParameter:
        """Find the parameter: `step`, else the first with a similar name (`global_step`, `iteration`, `epoch` …).

        Raises TypeError for a function that cannot be decorated; the message says what to change.
        """
        label = f"@{decorator}: {getattr(function, '__qualname__', function)!s}"
        if not callable(function):
            raise TypeError(f"{label} is not a function; put @staticmethod or @classmethod above @{decorator}")
        if _is_asynchronous(function):
            raise TypeError(
                f"{label} is asynchronous or a generator, so it would return before its work is done; decorate a "
                "plain function and call it with asyncio.to_thread"
            )
        try:
            signature = inspect.signature(function)
        except ValueError as error:
            raise TypeError(f"{label} has no signature to find the step in; wrap it in a function: {error}") from error
        named = [p for p in signature.parameters.values() if p.kind in (*_POSITIONAL, Parameter.KEYWORD_ONLY)]
        by_name = [p for p in named if p.name == "step"] or [p for p in named if _is_step_like(p.name)]
        if not by_name:
            raise TypeError(f"{label}{signature} has no parameter for the step; call it `step`, or add one")
        parameter = by_name[0]
        position = list(signature.parameters).index(parameter.name) if parameter.kind in _POSITIONAL else None
        return cls(signature, parameter.name, position)

    def step_of_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
        """The step of a call. Raises TypeError when the call does not fit the function or the step is not a whole
        number."""
        bound = self.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        value = bound.arguments[self.name]
        step = as_whole_number(value)
        if step is None or step < 0:
            raise TypeError(f"{self.name} must be a whole number, 0 or more, not {value!r}")
        return step

    def with_step(
        self, step: int, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a call with `step` in place of the step that was passed: a number, None, or nothing."""
        position = self.position
        if self.name in kwargs or position is None or position > len(args):
            return args, {**kwargs, self.name: step}
        replaced = (*args[:position], step, *args[position + 1 :]), kwargs
        inserted = (*args[:position], step, *args[position:]), kwargs
        if position == len(args):
            return inserted
        is_step = args[position] is None or as_whole_number(args[position]) is not None
        return replaced if is_step or not self._fits(*inserted) else inserted

    def _fits(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        try:
            self.signature.bind(*args, **kwargs)
        except TypeError:
            return False
        return True


def validate_series(save_dir: SaveDir, prefix: str, *, decorator: str) -> None:
    """Raise ValueError or TypeError when a save_dir or a checkpoint_prefix is not valid."""
    check_prefix(prefix, "checkpoint_prefix")
    if not callable(save_dir):
        root_of(save_dir)
    elif inspect.signature(save_dir).parameters:
        raise TypeError(f"@{decorator} needs a directory: write @{decorator}(save_dir=...)")


def name_of(function: Callable[..., Any]) -> str:
    """The module and the name of a function; empty for a callable without a name."""
    name = getattr(function, "__qualname__", "")
    return f"{function.__module__}.{name}" if name else ""


def require_result(result: T, function: Callable[..., T]) -> T:
    """`result` itself. Raises CheckpointError if it is an awaitable, so that the work is not done yet."""
    if inspect.iscoroutine(result):
        result.close()
    if inspect.isawaitable(result):
        raise CheckpointError(
            f"{getattr(function, '__qualname__', function)} returned an awaitable, so it is not done yet; decorate a "
            "plain function and call it with asyncio.to_thread"
        )
    return result


def as_whole_number(value: Any) -> int | None:
    """`value` as an int if it is one, of any library's type (numpy, torch) or a float without a fraction; else None."""
    try:
        return operator.index(value)
    except TypeError:
        pass
    if not hasattr(value, "is_integer"):
        return None
    return int(value) if value.is_integer() else None


def _is_step_like(name: str) -> bool:
    words = set(re.split(r"_+", name.lower()))
    return not _STEP_WORDS.isdisjoint(words) and _COUNT_WORDS.isdisjoint(words)


def _is_asynchronous(function: Callable[..., Any]) -> bool:
    checks = (inspect.iscoroutinefunction, inspect.isasyncgenfunction, inspect.isgeneratorfunction)
    targets = (function, getattr(function, "__call__", None))  # noqa: B004
    return any(check(target) for check in checks for target in targets)
