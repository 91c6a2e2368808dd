"""The file format of a state: safetensors, with the tree in its metadata.

Eight bytes with the length of the header, the header as JSON (name → element type, shape, offsets), then the arrays,
each aligned to its elements. Any tool that reads safetensors sees the arrays under their paths in the state. The tree
is in `__metadata__.perdure`.

Some arrays of a state may be in other files, to which the metadata refers by path and place.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from json.encoder import encode_basestring_ascii
from typing import Any

from perdure.checkpoint.state import arrays, document, tree
from perdure.checkpoint.state.arrays import SavedArray
from perdure.checkpoint.state.tree import Flat

_FORMAT, _FORMAT_OF_SEVERAL_FILES = 1, 2
_ALIGNMENT = 64
_LENGTH_BYTES = 8
_TREE_KEY = "perdure"
_METADATA = "__metadata__"


class InvalidStateFile(ValueError):
    """The file is not a state that this version can read."""


@dataclass(frozen=True)
class Layout:
    """The order and sizes of everything in a file."""

    header: bytes
    order: tuple[int, ...]  # the numbers of the arrays, as they follow each other
    sizes: tuple[int, ...]  # their bytes, in the same order

    @property
    def size(self) -> int:
        return len(self.header) + sum(self.sizes)

    def places(self) -> Iterator[tuple[int, int, int]]:
        """(number, offset in the file, bytes) of every array."""
        offset = len(self.header)
        for number, size in zip(self.order, self.sizes):
            yield number, offset, size
            offset += size


def plan_layout(flat: Flat, elsewhere: Mapping[int, SavedArray] | None = None) -> Layout:
    """The layout of `flat`. Arrays with the widest elements come first, so that each is aligned to its elements.

    `elsewhere`: the arrays that another file has, by number.
    """
    names, kinds = flat.names, tuple((array.kind, array.dtype, array.shape) for array in flat.arrays)
    order, sizes, listed, described = _describe(names, kinds, frozenset(elsewhere or ()))
    tree_text = json.dumps(flat.document, separators=(",", ":"))
    content = f'{{"format":{_FORMAT},"tree":{tree_text},"arrays":{listed}}}'
    if elsewhere:
        files = sorted({one.file for one in elsewhere.values()})
        places = [
            [number, files.index(one.file), one.element, one.shape, one.begin]
            for number, one in sorted(elsewhere.items())
        ]
        more = json.dumps({"format": _FORMAT_OF_SEVERAL_FILES, "files": files, "elsewhere": places})
        content = f'{{{more[1:-1]},"tree":{tree_text},"arrays":{listed}}}'
    text = f'{{"{_METADATA}":{{"{_TREE_KEY}":{encode_basestring_ascii(content)}}}{described}}}'.encode()
    padded = text + b" " * (-(_LENGTH_BYTES + len(text)) % _ALIGNMENT)
    header = len(padded).to_bytes(_LENGTH_BYTES, "little") + padded
    return Layout(header, order, sizes)


@lru_cache(maxsize=4)
def _describe(
    names: tuple[str, ...], kinds: tuple[tuple[str, str, tuple[int, ...]], ...], elsewhere: frozenset[int]
) -> tuple[tuple[int, ...], tuple[int, ...], str, str]:
    """Order and sizes of arrays, and two JSON texts: the list of their names and kinds, and their entries of the header
    with a comma before each. A program saves the same arrays again and again, so these are remembered."""
    widths = [-arrays.size_of(dtype, ()) for _, dtype, _ in kinds]
    order = sorted((number for number in range(len(widths)) if number not in elsewhere), key=widths.__getitem__)
    sizes, described, end = [], [], 0
    for number in order:
        (_, dtype, shape), begin = kinds[number], end
        sizes.append(arrays.size_of(dtype, shape))
        end += sizes[-1]
        entry = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
        described.append(f",{encode_basestring_ascii(names[number])}:{json.dumps(entry, separators=(',', ':'))}")
    listed = json.dumps([[name, kind] for name, (kind, _, _) in zip(names, kinds)], separators=(",", ":"))
    return tuple(order), tuple(sizes), listed, "".join(described)


@dataclass(frozen=True)
class Header:
    """What the beginning of a file tells."""

    document: Any  # the state, with a number in place of every array
    arrays: tuple[SavedArray, ...]

    @property
    def files(self) -> list[str]:
        """The other files that the state needs."""
        return sorted({one.file for one in self.arrays if one.file})


def header_bytes(beginning: memoryview, size: int) -> int:
    """How many bytes the header of a file of `size` bytes has, with its length. Raises InvalidStateFile."""
    count = _LENGTH_BYTES + int.from_bytes(beginning[:_LENGTH_BYTES], "little")
    if len(beginning) < _LENGTH_BYTES or count > size:
        raise InvalidStateFile(f"it has {size} bytes, of which {count} would be its header")
    return count


def parse_header(header: memoryview, size: int) -> Header:
    """What `header` tells; it has as many bytes as `header_bytes` returns. `size`: of the file, in bytes.

    Raises InvalidStateFile.
    """
    try:
        described = json.loads(bytes(header[_LENGTH_BYTES:]))
        content = json.loads(described[_METADATA][_TREE_KEY])
        if content["format"] not in (_FORMAT, _FORMAT_OF_SEVERAL_FILES):
            raise InvalidStateFile(
                f"it has format {content['format']!r}; this version reads up to {_FORMAT_OF_SEVERAL_FILES}"
            )
        elsewhere = {number: place for number, *place in content.get("elsewhere", ())}
        saved = tuple(
            _elsewhere(number, kind, elsewhere[number], content["files"])
            if number in elsewhere
            else _saved_array(number, kind, described[name], len(header), size)
            for number, (name, kind) in enumerate(content["arrays"])
        )
        return Header(content["tree"], saved)
    except _INVALID as error:
        raise _invalid(error) from error


def select(header: Header, keys: Iterable[Any]) -> Header:
    """The header of a state that has only `keys`: those of the dict that the state is, and tuples of keys, which lead
    into dicts of it. Its arrays are all that the file has.

    Raises InvalidStateFile, and CheckpointError if there is no such place.
    """
    try:
        chosen = document.select(header.document, [key if isinstance(key, tuple) else (key,) for key in keys])
    except _INVALID as error:
        raise _invalid(error) from error
    return Header(chosen, header.arrays)


def numbers_in(header: Header) -> set[int]:
    """The numbers of the arrays that the state refers to."""
    return set(document.array_numbers(header.document))


def rebuild(header: Header, restored: Sequence[Any]) -> Any:
    """The state with `restored` in place of the header's arrays, in their order.

    Raises InvalidStateFile, and CheckpointError when a class is missing.
    """
    try:
        return tree.rebuild(header.document, restored)
    except _INVALID as error:
        raise _invalid(error) from error


def parse(data: memoryview) -> Any:
    """The state in `data`, whose memory its arrays share.

    Raises InvalidStateFile, and CheckpointError when a framework is missing.
    """
    header = parse_header(data[: header_bytes(data, len(data))], len(data))
    return rebuild(header, restore_arrays(header, {"": data}))


def restore_arrays(header: Header, data: Mapping[str, memoryview]) -> list[Any]:
    """The header's arrays, which share the memory of `data`: the content of each file. Raises as `parse`."""
    restored = []
    for one in header.arrays:
        content = data[one.file] if one.file in data else memoryview(b"")
        if one.begin + one.nbytes > len(content):
            raise InvalidStateFile(f"it refers to {one.begin + one.nbytes} bytes of {one.file}, which are not there")
        restored.append(restore_array(one, content[one.begin : one.begin + one.nbytes]))
    return restored


def restore_array(saved: SavedArray, data: memoryview) -> Any:
    """As `arrays.restore_array`. Raises InvalidStateFile as well."""
    try:
        return arrays.restore_array(saved, data)
    except _INVALID as error:
        raise _invalid(error) from error


def _saved_array(number: int, kind: str, described: Any, offset: int, size: int) -> SavedArray:
    (begin, end), shape, element = described["data_offsets"], tuple(described["shape"]), described["dtype"]
    if not 0 <= begin <= end <= size - offset or min(shape, default=0) < 0:
        raise InvalidStateFile(f"it has an array of the shape {shape} at {begin} to {end}, of {size - offset} bytes")
    if end - begin != arrays.size_of(element, shape):
        raise InvalidStateFile(f"it has {end - begin} bytes for an array of {element} of the shape {shape}")
    return SavedArray(number, str(kind), element, shape, offset + begin)


def _elsewhere(number: int, kind: str, place: Any, files: Any) -> SavedArray:
    file, element, shape, begin = place
    array = SavedArray(number, str(kind), element, tuple(shape), begin, str(files[file]))
    if begin < 0 or min(array.shape, default=0) < 0 or not array.file or not array.nbytes:
        raise InvalidStateFile(f"it has an array of the shape {shape} at {begin} of another file")
    return array


_INVALID = (ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError, RecursionError)


def _invalid(error: Exception) -> InvalidStateFile:
    if isinstance(error, InvalidStateFile):
        return error
    return InvalidStateFile(f"it is not a state that Checkpointer saved: {type(error).__name__}: {error}")
