"""Nested containers as JSON, with a number in place of every array.

Supported are dict (keys: str, int, bool, float, None), list, tuple, None, bool, int, float, str, arrays and bytes.
Objects with `state_dict` are saved as what it returns. Anything else is rejected with its place in the state: a value
that cannot be represented exactly must not be saved in part.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from perdure.checkpoint.state.arrays import Array, as_array
from perdure.checkpoint.state.wrappers import unwrap

_PLAIN = (str, int, float, bool, type(None))


class UnsupportedValue(TypeError):
    """A part of the state cannot be saved. The message names its place and what to do."""


@dataclass(frozen=True)
class Flat:
    """A state, decomposed. An array that occurs several times in the state occurs once here."""

    document: Any  # JSON that refers to `arrays` by number
    arrays: tuple[Array, ...]
    names: tuple[str, ...]  # of the arrays: their places in the state, each unique
    references: tuple[Any, ...]  # the objects whose memory the arrays use, to keep them alive


def flatten(state: Any) -> Flat:
    """Decompose `state`; nothing is copied. Raises UnsupportedValue."""
    flattener = _Flattener()
    document = flattener.document(state, ())
    return Flat(document, tuple(flattener.arrays), tuple(flattener.names), tuple(flattener.references))


class _Flattener:
    def __init__(self) -> None:
        self.arrays: list[Array] = []
        self.names: list[str] = []
        self.references: list[Any] = []
        self._known: dict[object, int] = {}
        self._taken: set[str] = set()

    def document(self, value: Any, place: tuple[Any, ...]) -> Any:
        if isinstance(value, _PLAIN) and not hasattr(value, "dtype"):
            return _plain(value)
        if isinstance(value, dict):
            kind = "ordered" if isinstance(value, OrderedDict) else "dict"
            pairs = [[_key(k, place), self.document(v, (*place, k))] for k, v in value.items()]
            return {kind: pairs}
        if isinstance(value, (list, tuple)) and not hasattr(value, "_fields"):
            kind = "list" if isinstance(value, list) else "tuple"
            return {kind: [self.document(item, (*place, i)) for i, item in enumerate(value)]}
        try:
            array = as_array(value)
        except TypeError as error:
            raise UnsupportedValue(f"{_format_place(place)} {error}") from None
        if array is not None:
            return {"array": self._number(array, value, place)}
        if callable(getattr(value, "state_dict", None)) and not isinstance(value, type):
            return self.document(unwrap(value).state_dict(), place)
        raise UnsupportedValue(
            f"{_format_place(place)} is a {type(value).__qualname__}, which a checkpoint cannot hold; save its parts "
            "(numbers, strings, lists, dicts, arrays), or write it to a file of your own with @save_checkpoint"
        )

    def _number(self, array: Array, value: Any, place: tuple[Any, ...]) -> int:
        key = (array.kind, array.source)
        if key not in self._known:
            self._known[key] = len(self.arrays)
            self.arrays.append(array)
            self.names.append(self._name(place))
            self.references.append(value)
        return self._known[key]

    def _name(self, place: tuple[Any, ...]) -> str:
        name = ".".join(map(str, place)) or "state"
        if name in self._taken:
            name = f"{name}#{len(self._taken)}"
        self._taken.add(name)
        return name


def _format_place(place: tuple[Any, ...]) -> str:
    return "state" + "".join(f"[{key!r}]" for key in place)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": repr(float(value))}
    for kind in (bool, int, float, str):  # also for their subclasses, including enumerations
        if isinstance(value, kind):
            return kind(value)
    return None


def _key(key: Any, place: tuple[Any, ...]) -> Any:
    if isinstance(key, _PLAIN) and not hasattr(key, "dtype"):
        return _plain(key)
    raise UnsupportedValue(f"{_format_place(place)} has the key {key!r}; keys are strings or numbers")


def rebuild(document: Any, arrays: Sequence[Any]) -> Any:
    """The state that `flatten` decomposed. Raises ValueError for a document that `flatten` cannot have produced."""
    if not isinstance(document, dict):
        return document
    if len(document) != 1:
        raise ValueError(f"not a part of a state: {document!r:.80}")
    ((kind, content),) = document.items()
    if kind == "array":
        return arrays[content]
    if kind == "float":
        return float(content)
    if kind in ("list", "tuple"):
        items = [rebuild(item, arrays) for item in content]
        return items if kind == "list" else tuple(items)
    if kind in ("dict", "ordered"):
        pairs = [(rebuild(key, arrays), rebuild(value, arrays)) for key, value in content]
        return dict(pairs) if kind == "dict" else OrderedDict(pairs)
    raise ValueError(f"not a part of a state: {kind!r}")
