"""Frozen values, how they change and what they remember: `replace` and `cached`, as of the standard library, at a
fraction of its price.

Decisions are made of small changes to large values, ten of them and more each; a simulation makes millions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

__all__ = ["cached", "dataclass", "replace"]

Value = TypeVar("Value")

# Set so, an attribute is found as fast as those that `__init__` set; through `__dict__` all of them would be slower.
_new, _set = object.__new__, object.__setattr__


class cached(Generic[Value]):  # noqa: N801 - read as what it decorates with, like `property`
    """A property that is worked out once for each value, like `functools.cached_property`, which takes a lock (Python
    3.11): two threads that ask at the same moment may both work it out here, to the same answer."""

    def __init__(self, work_out: Callable[[Any], Value]) -> None:
        self._work_out = work_out
        self._name = work_out.__name__
        self.__doc__ = work_out.__doc__

    @overload
    def __get__(self, value: None, kind: type) -> cached[Value]: ...

    @overload
    def __get__(self, value: object, kind: type) -> Value: ...

    def __get__(self, value: object | None, kind: type) -> cached[Value] | Value:
        """Asked only as long as `value` has no attribute of that name itself."""
        if value is None:
            return self
        found: Value = self._work_out(value)
        _set(value, self._name, found)
        return found


if TYPE_CHECKING:
    from dataclasses import dataclass, replace  # type checkers know what they take
else:

    def dataclass(*, frozen: bool, **options: Any) -> Callable[[type], type]:
        """As of `dataclasses`, frozen for type checkers alone: a value whose fields are kept from being set is made
        field by field through a function call."""
        return dataclasses.dataclass(unsafe_hash=frozen, **options)

    def replace(value: Value, /, **changes: Any) -> Value:
        """A copy of `value`, a dataclass without slots, with other values of the fields named.

        Raises TypeError for a field that there is not. What was cached on `value` is not carried over; `__post_init__`
        does not run.
        """
        kind = type(value)
        has = value.__dict__ | changes
        fields = kind.__dataclass_fields__
        if len(has) != len(fields):
            for name in _cached(kind):
                has.pop(name, None)
            if len(has) != len(fields):
                raise TypeError(f"{kind.__name__} has no {', '.join(sorted(has.keys() - fields.keys()))}")
        new = _new(kind)
        _set(new, "__dict__", has)
        return new


@cache
def _cached(kind: type) -> tuple[str, ...]:
    """What instances of `kind` remember of themselves besides their fields."""
    return tuple(name for name in dir(kind) if isinstance(getattr(kind, name), cached))
