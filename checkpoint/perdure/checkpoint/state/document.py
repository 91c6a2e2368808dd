"""The containers that a state may consist of, as JSON and back. Each is stored with its exact type, so that none comes
back as another one."""

from __future__ import annotations

import sys
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from perdure.checkpoint.errors import CheckpointError
from perdure.checkpoint.state import plain_values
from perdure.checkpoint.state.arrays import require_module
from perdure.checkpoint.state.pytree import SavedNode

# Of subclasses of these, only their content could be saved, not what the subclass adds.
BUILTINS = (bool, int, float, complex, str, bytes, bytearray, dict, list, tuple, set, frozenset)
CONTAINERS = (dict, list, tuple, deque, set, frozenset)
_FACTORIES = {kind.__name__: kind for kind in (int, float, bool, str, list, dict, set, tuple, deque, Counter)}
_METADATA = "_metadata"  # what PyTorch adds to the OrderedDict of a module: the versions of its parts

DumpChild = Callable[[Any, Any], Any]  # (key or index, value) → its JSON
DumpItem = Callable[[Any, str], Any]  # (value, "key" or "item") → its JSON


class DocumentError(ValueError):
    """The document is not one that `dump` can have produced."""


def dump(value: Any, child: DumpChild, item: DumpItem) -> dict[str, Any] | None:
    """A container as JSON; None if `value` is not a container that can be stored exactly."""
    kind = type(value)
    if kind in (dict, Counter, OrderedDict, defaultdict):
        return _dump_mapping(value, child, item)
    if kind in (list, tuple):
        return {kind.__name__: [child(index, one) for index, one in enumerate(value)]}
    if kind is deque:
        return {"deque": [[child(index, one) for index, one in enumerate(value)], value.maxlen]}
    if kind in (set, frozenset):
        return {kind.__name__: [item(one, "item") for one in value]}
    torch = sys.modules.get("torch")
    if torch is not None and kind is torch.Size:
        return {"torch.Size": list(map(int, value))}
    if _is_namedtuple(kind) and _find_class(kind.__module__, kind.__qualname__) is kind:
        name = f"{kind.__module__}:{kind.__qualname__}"
        return {"namedtuple": [name, list(kind._fields), [child(f, one) for f, one in zip(kind._fields, value)]]}
    return None


def _dump_mapping(value: Any, child: DumpChild, item: DumpItem) -> dict[str, Any] | None:
    if getattr(value, "__dict__", {}).keys() - {_METADATA}:
        return None  # attributes of its own, which would be lost
    pairs = [[item(key, "key"), child(key, one)] for key, one in value.items()]
    if type(value) is Counter:
        return {"counter": pairs}
    if type(value) is OrderedDict:
        metadata = getattr(value, _METADATA, None)
        return {"ordered": pairs} if metadata is None else {"module": [pairs, child(_METADATA, metadata)]}
    if type(value) is defaultdict:
        factory = value.default_factory
        if factory is None:
            return {"defaultdict": [None, pairs]}
        name = getattr(factory, "__name__", "")
        return {"defaultdict": [name, pairs]} if _FACTORIES.get(name) is factory else None
    return {"dict": pairs}


def rebuild(document: Any, arrays: Sequence[Any]) -> Any:
    """The state that `flatten` decomposed. No module is imported for it but PyTorch.

    Raises DocumentError for a document that `flatten` cannot have produced, and CheckpointError for a namedtuple whose
    class the program has not imported.
    """
    if not isinstance(document, dict):
        return document
    if len(document) != 1:
        raise DocumentError(f"not a part of a state: {document!r:.80}")
    ((kind, content),) = document.items()
    if kind == "array":
        return arrays[content]
    if kind in plain_values.READERS:
        return plain_values.READERS[kind](content)
    reader = _READERS.get(kind)
    if reader is None:
        raise DocumentError(f"not a part of a state: {kind!r}")
    return reader(content, lambda one: rebuild(one, arrays))


def select(document: Any, places: Sequence[tuple[Any, ...]], where: str = "state") -> Any:
    """The document of a dict that has only `places`, each a sequence of keys from the outermost dict inwards.

    Raises CheckpointError if there is no such place, and DocumentError.
    """
    if not all(places):
        return document
    kind, content = next(iter(document.items())) if isinstance(document, dict) else ("", [])
    if kind not in ("dict", "ordered", "module"):
        raise CheckpointError(f"{where} is no dict, of which {places[0][0]!r} could be loaded alone")
    pairs = {rebuild(key, ()): (key, value) for key, value in (content[0] if kind == "module" else content)}
    inner: dict[Any, list[tuple[Any, ...]]] = {}
    for key, *rest in places:
        if key not in pairs:
            raise CheckpointError(f"{where} has no {key!r}; it has {', '.join(map(repr, pairs)) or 'nothing'}")
        inner.setdefault(key, []).append(tuple(rest))
    chosen = [
        [written, select(value, inner[key], f"{where}[{key!r}]")]
        for key, (written, value) in pairs.items()
        if key in inner
    ]
    return {kind: [chosen, content[1]] if kind == "module" else chosen}


def array_numbers(document: Any) -> Iterator[int]:
    """The numbers of all arrays that a document refers to."""
    if isinstance(document, dict):
        if len(document) == 1 and isinstance(number := document.get("array"), int):
            yield number
            return
        document = list(document.values())
    if isinstance(document, list):
        for one in document:
            yield from array_numbers(one)


Rebuild = Callable[[Any], Any]


def _pairs(content: Any, rebuilt: Rebuild) -> list[tuple[Any, Any]]:
    return [(rebuilt(key), rebuilt(value)) for key, value in content]


def _module(content: Any, rebuilt: Rebuild) -> Any:
    pairs, metadata = content
    loaded = OrderedDict(_pairs(pairs, rebuilt))
    setattr(loaded, _METADATA, rebuilt(metadata))
    return loaded


def _counter(content: Any, rebuilt: Rebuild) -> Any:
    loaded: Counter[Any] = Counter()
    for key, count in _pairs(content, rebuilt):
        loaded[key] = count
    return loaded


def _defaultdict(content: Any, rebuilt: Rebuild) -> Any:
    factory, pairs = content
    return defaultdict(None if factory is None else _FACTORIES[factory], _pairs(pairs, rebuilt))


def _namedtuple(content: Any, rebuilt: Rebuild) -> Any:
    name, fields, items = content
    module, _, path = name.partition(":")
    kind = _find_class(module, path)
    if not _is_namedtuple(kind) or list(kind._fields) != fields:
        raise CheckpointError(
            f"the checkpoint holds a {path} with the fields {', '.join(fields)}, and this program has no such class in "
            f"{module}: import that module (in the version that the checkpoint was saved with) before loading"
        )
    return tuple.__new__(kind, [rebuilt(one) for one in items])


def _find_class(module: str, path: str) -> Any:
    value: Any = sys.modules.get(module)
    for part in path.split("."):
        value = getattr(value, part, None)
    return value


def _is_namedtuple(kind: Any) -> bool:
    fields = getattr(kind, "_fields", None)
    is_tuple = isinstance(kind, type) and kind.__bases__ == (tuple,)
    return is_tuple and isinstance(fields, tuple) and all(type(field) is str for field in fields)


_READERS: dict[str, Callable[[Any, Rebuild], Any]] = {
    "list": lambda content, rebuilt: [rebuilt(one) for one in content],
    "tuple": lambda content, rebuilt: tuple(rebuilt(one) for one in content),
    "set": lambda content, rebuilt: {rebuilt(one) for one in content},
    "frozenset": lambda content, rebuilt: frozenset(rebuilt(one) for one in content),
    "deque": lambda content, rebuilt: deque((rebuilt(one) for one in content[0]), content[1]),
    "dict": lambda content, rebuilt: dict(_pairs(content, rebuilt)),
    "ordered": lambda content, rebuilt: OrderedDict(_pairs(content, rebuilt)),
    "module": _module,
    "counter": _counter,
    "defaultdict": _defaultdict,
    "namedtuple": _namedtuple,
    "pytree": lambda content, rebuilt: SavedNode(content[0], {key: rebuilt(one) for key, one in content[1]}),
    "torch.Size": lambda content, _: require_module("torch").Size(content),
}
