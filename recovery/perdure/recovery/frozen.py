"""Frozen dataclasses and how to change and extend them: `dataclass`, `replace` and `cached`.

They do what their standard-library counterparts do, at a fraction of the cost. A decision makes ten or more small
changes to large values, and a simulation makes millions of decisions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

__all__ = ["cached", "dataclass", "replace"]

Value = TypeVar("Value")

# An attribute set this way is as fast to read as one set by `__init__`; writing to `__dict__` would slow all of them.
_new, _set = object.__new__, object.__setattr__


class cached(Generic[Value]):  # noqa: N801 - used as a decorator, like `property`
    """A property that is computed once per instance.

    Unlike `functools.cached_property` (Python 3.11) it takes no lock: two threads may compute the same value twice.
    """

    def __init__(self, compute: Callable[[Any], Value]) -> None:
        self._compute = compute
        self._name = compute.__name__
        self.__doc__ = compute.__doc__

    @overload
    def __get__(self, value: None, kind: type) -> cached[Value]: ...

    @overload
    def __get__(self, value: object, kind: type) -> Value: ...

    def __get__(self, value: object | None, kind: type) -> cached[Value] | Value:
        """Python calls this only while `value` has no attribute of this name in its `__dict__`."""
        if value is None:
            return self
        result: Value = self._compute(value)
        _set(value, self._name, result)
        return result


if TYPE_CHECKING:
    from dataclasses import dataclass, replace  # gives type checkers the signatures
else:

    def dataclass(*, frozen: bool, **options: Any) -> Callable[[type], type]:
        """`dataclasses.dataclass`, where `frozen` only adds a hash and is enforced by the type checker.

        A dataclass that is frozen at run time sets each field through a function call when it is created.
        """
        return dataclasses.dataclass(unsafe_hash=frozen, **options)

    def replace(value: Value, /, **changes: Any) -> Value:
        """A copy of `value`, a dataclass without slots, with the named fields changed.

        Raises TypeError for an unknown field. Cached properties of `value` are not copied; `__post_init__` does not
        run.
        """
        kind = type(value)
        attributes = value.__dict__ | changes
        fields = kind.__dataclass_fields__
        if len(attributes) != len(fields):
            for name in _cached_names(kind):
                attributes.pop(name, None)
            if len(attributes) != len(fields):
                raise TypeError(f"{kind.__name__} has no {', '.join(sorted(attributes.keys() - fields.keys()))}")
        new = _new(kind)
        _set(new, "__dict__", attributes)
        return new


@cache
def _cached_names(kind: type) -> tuple[str, ...]:
    """The names of the cached properties of `kind`."""
    return tuple(name for name in dir(kind) if isinstance(getattr(kind, name), cached))
