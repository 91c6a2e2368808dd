"""The file format of a state: safetensors, with the tree in its metadata.

Eight bytes with the length of the header, the header as JSON (name → element type, shape, offsets), then the arrays,
each aligned to its elements. Any tool that reads safetensors sees the arrays under their paths in the state. The tree
is in `__metadata__.perdure`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from perdure.checkpoint.state import arrays, tree
from perdure.checkpoint.state.tree import Flat

_FORMAT = 1
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


def plan_layout(flat: Flat) -> Layout:
    """The layout of `flat`. Arrays with the widest elements come first, so that each is aligned to its elements."""
    widths = [arrays.size_of(array.dtype, ()) for array in flat.arrays]
    sizes = [array.nbytes for array in flat.arrays]
    order = sorted(range(len(widths)), key=lambda number: -widths[number])
    described: dict[str, Any] = {}
    end = 0
    for number in order:
        array, begin = flat.arrays[number], end
        end += sizes[number]
        name = flat.names[number]
        described[name] = {"dtype": array.dtype, "shape": list(array.shape), "data_offsets": [begin, end]}
    listed = [[name, array.kind] for name, array in zip(flat.names, flat.arrays)]
    content = {"format": _FORMAT, "tree": flat.document, "arrays": listed}
    text = json.dumps({_METADATA: {_TREE_KEY: json.dumps(content)}, **described}, separators=(",", ":")).encode()
    padded = text + b" " * (-(_LENGTH_BYTES + len(text)) % _ALIGNMENT)
    header = len(padded).to_bytes(_LENGTH_BYTES, "little") + padded
    return Layout(header, tuple(order), tuple(sizes[number] for number in order))


def parse(data: memoryview) -> Any:
    """The state in `data`, whose memory its arrays share.

    Raises InvalidStateFile, and CheckpointError when a framework is missing.
    """
    try:
        begin = _LENGTH_BYTES + int.from_bytes(data[:_LENGTH_BYTES], "little")
        described = json.loads(bytes(data[_LENGTH_BYTES:begin]))
        content = json.loads(described[_METADATA][_TREE_KEY])
        if content["format"] != _FORMAT:
            raise InvalidStateFile(f"it has format {content['format']!r}; this version reads {_FORMAT}")
        restored = [_array(described[name], kind, data[begin:]) for name, kind in content["arrays"]]
        return tree.rebuild(content["tree"], restored)
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError, RecursionError) as error:
        raise InvalidStateFile(f"it is not a state that Checkpointer saved: {type(error).__name__}: {error}") from error


def _array(described: Any, kind: str, data: memoryview) -> Any:
    (begin, end), shape = described["data_offsets"], tuple(described["shape"])
    if not 0 <= begin <= end <= len(data) or min(shape, default=0) < 0:
        raise InvalidStateFile(f"it has an array of the shape {shape} at {begin} to {end}, of {len(data)} bytes")
    if end - begin != arrays.size_of(described["dtype"], shape):
        raise InvalidStateFile(f"it has {end - begin} bytes for an array of {described['dtype']} of the shape {shape}")
    return arrays.restore_array(kind, described["dtype"], shape, data[begin:end])
