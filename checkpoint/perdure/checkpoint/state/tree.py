"""Nested containers as JSON, with a number in place of every array.

Supported are None, bool, int, float, complex, str, arrays, bytes and bytearray, and as containers dict (keys: str, int,
bool, float, None), OrderedDict, Counter, defaultdict, list, tuple, deque, set, frozenset, torch.Size and namedtuples.
Objects with `state_dict` are saved as what it returns, and containers that are registered with JAX or PyTorch as their
content (`pytree`). Anything else is rejected with its place in the state, including
subclasses of these types: a value that cannot be represented exactly must not be saved in part.
"""

from __future__ import annotations

import contextlib
import enum
import gc
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from perdure.checkpoint.state.arrays import Array, as_array
from perdure.checkpoint.state.document import BUILTINS, CONTAINERS, dump, rebuild
from perdure.checkpoint.state.plain_values import PLAIN_TYPES, as_json_has_it, dump_plain
from perdure.checkpoint.state.pytree import as_node
from perdure.checkpoint.state.wrappers import unwrap

__all__ = ["Flat", "UnsupportedValue", "flatten", "rebuild"]

MAX_DEPTH = 100  # of containers: far below the recursion limits of Python and of its JSON parser
_RESERVED_NAMES = frozenset({"__metadata__"})  # of the file format


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


@contextlib.contextmanager
def uncollected() -> Iterator[None]:
    """No garbage is collected meanwhile. Thousands of arrays make thousands of small objects, whose number alone would
    start a collection of the whole program's heap, which takes longer than the work itself."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class _Flattener:
    def __init__(self) -> None:
        self.arrays: list[Array] = []
        self.names: list[str] = []
        self.references: list[Any] = []
        self._known: dict[object, int] = {}
        self._taken: set[str] = set(_RESERVED_NAMES)

    def document(self, value: Any, place: tuple[Any, ...]) -> Any:
        if len(place) > MAX_DEPTH:
            raise UnsupportedValue(
                f"{_format_place(place[:3])}… is nested more than {MAX_DEPTH} levels deep, or contains itself"
            )
        if type(value) in PLAIN_TYPES and (plain := dump_plain(value)) is not None:
            return plain[0]
        if isinstance(value, CONTAINERS):
            content = dump(value, lambda key, item: self.document(item, (*place, key)), _item_dumper(place))
            if content is not None:
                return content
        try:
            array = as_array(value)
        except TypeError as error:
            raise UnsupportedValue(f"{_format_place(place)} {error}") from None
        if array is not None:
            return {"array": self._number(array, value, place)}
        if callable(getattr(value, "state_dict", None)) and not isinstance(value, type):
            return self.document(unwrap(value).state_dict(), place)
        node = None if isinstance(value, (type, *BUILTINS)) else as_node(value)
        if node is not None:
            children = [[key, self.document(child, (*place, key))] for key, child in node.children.items()]
            return {"pytree": [node.kind, children]}
        raise UnsupportedValue(f"{_format_place(place)} {_rejection(value)}")

    def _number(self, array: Array, value: Any, place: tuple[Any, ...]) -> int:
        key = (array.kind, array.source)
        number = self._known.setdefault(key, len(self.arrays))
        if number == len(self.arrays):
            self.arrays.append(array)
            self.names.append(self._name(place))
            self.references.append(value)
        return number

    def _name(self, place: tuple[Any, ...]) -> str:
        """A name that no other array has: places such as `["a.b"]` and `["a"]["b"]` read alike."""
        plain = name = as_json_has_it(".".join(map(str, place))) or "state"
        number = len(self._taken)
        while name in self._taken:
            name, number = f"{plain}#{number}", number + 1
        self._taken.add(name)
        return name


def _format_place(place: tuple[Any, ...]) -> str:
    return "state" + "".join(f"[{key!r}]" for key in place)


def _rejection(value: Any) -> str:
    kind = type(value)
    if isinstance(value, enum.Enum):
        return f"is a {kind.__qualname__}, and a checkpoint holds no enumerations; save its `value`"
    if kind in (OrderedDict, Counter) and vars(value):
        return f"has the attributes {', '.join(sorted(vars(value)))}, which would be lost; save {kind.__name__}(value)"
    builtin = next((base for base in kind.__mro__[1:] if base in BUILTINS), None)
    if builtin is not None:
        return (
            f"is a {kind.__qualname__}, which would come back as a plain {builtin.__name__}; save "
            f"{builtin.__name__}(value) if that is what you want"
        )
    return (
        f"is a {kind.__qualname__}, which a checkpoint cannot hold; save its parts "
        "(numbers, strings, lists, dicts, arrays), or write it to a file of your own with @save_checkpoint"
    )


def _item_dumper(place: tuple[Any, ...]) -> Callable[[Any, str], Any]:
    """Dumps what has to be hashable: the keys of a dict, and the items of a set, which may be tuples as well."""

    def dump_item(value: Any, role: str) -> Any:
        if role == "item" and type(value) is tuple:
            return {"tuple": [dump_item(one, role) for one in value]}
        plain = dump_plain(value)
        if plain is None or type(value) is complex:
            allowed = "keys are strings or numbers" if role == "key" else "items of a set are strings and numbers"
            raise UnsupportedValue(f"{_format_place(place)} has the {role} {value!r}; {allowed}")
        return plain[0]

    return dump_item
