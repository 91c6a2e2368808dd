"""Frozen values and how they change: `replace`, as of `dataclasses`, at a tenth of its price.

Decisions are made of small changes to large values, ten of them and more each; a simulation makes millions.
"""

from __future__ import annotations

from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, TypeVar

__all__ = ["replace"]

if TYPE_CHECKING:
    from dataclasses import replace  # type checkers know what it takes
else:
    Value = TypeVar("Value")

    def replace(value: Value, /, **changes: Any) -> Value:
        """A copy of `value`, a dataclass without slots, with other values of the fields named.

        Raises TypeError for a field that there is not. What was cached on `value` is not carried over; `__post_init__`
        does not run.
        """
        kind = type(value)
        new = object.__new__(kind)
        has = new.__dict__
        has.update(value.__dict__)
        for name in _cached(kind):
            has.pop(name, None)
        fields = len(has)
        has.update(changes)
        if len(has) != fields:
            unknown = sorted(changes.keys() - value.__dataclass_fields__.keys())
            raise TypeError(f"{kind.__name__} has no {', '.join(unknown)}")
        return new


@cache
def _cached(kind: type) -> tuple[str, ...]:
    """What instances of `kind` remember of themselves besides their fields."""
    return tuple(name for name in dir(kind) if isinstance(getattr(kind, name), cached_property))
