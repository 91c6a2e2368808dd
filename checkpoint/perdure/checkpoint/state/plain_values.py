"""Numbers, strings and None as JSON and back, each with its type and its bits.

JSON has no infinities, and knows one NaN at most: Python's parser returns the same one, without sign and payload, for
every text. It reads the two halves of a surrogate pair as one character, although they are two in a Python string, and
Python refuses to print long integers in decimal. Such values are stored as an object with one key, as containers are.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Mapping
from typing import Any

_MAX_JSON_INT_BITS = 8192  # Python refuses to print longer integers in decimal
_INSIDE_OF_A_PAIR = re.compile("(?<=[\ud800-\udbff])(?=[\udc00-\udfff])")
_FLOAT_BITS = struct.Struct(">d")
_USUAL_NAN = _FLOAT_BITS.pack(math.nan)


PLAIN_TYPES = frozenset({bool, type(None), str, int, float, complex})  # not their subclasses


def dump_plain(value: Any) -> tuple[Any] | None:
    """The JSON of a number, a string or None, in a tuple; None for anything else, including subclasses."""
    kind = type(value)
    if kind in (bool, type(None)):
        return (value,)
    if kind is str:
        if value.isascii():
            return (value,)
        parts = _INSIDE_OF_A_PAIR.split(value)
        return (value if len(parts) == 1 else {"str": parts},)
    if kind is int:
        return (value if value.bit_length() <= _MAX_JSON_INT_BITS else {"int": hex(value)},)
    if kind is float:
        if math.isfinite(value):
            return (value,)
        part = _dump_part(value)
        return ({"float": part} if isinstance(part, str) else part,)
    if kind is complex:
        return ({"complex": [_dump_part(value.real), _dump_part(value.imag)]},)
    return None


def as_json_has_it(text: str) -> str:
    """`text` as it is after it was written as JSON and read. A surrogate without its other half is replaced, since
    tools for JSON reject it."""
    if text.isascii():
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _dump_part(value: float) -> str | dict[str, str]:
    """Its digits, or the bits of a NaN that has a sign or a payload."""
    bits = _FLOAT_BITS.pack(value)
    return {"nan": bits.hex()} if math.isnan(value) and bits != _USUAL_NAN else repr(value)


def _read_nan(content: str) -> float:
    bits = bytes.fromhex(content)
    if len(bits) != _FLOAT_BITS.size:
        raise ValueError(f"not the bits of a float: {content!r:.80}")
    return float(_FLOAT_BITS.unpack(bits)[0])


def _read_part(content: Any) -> float:
    """A part of a complex number."""
    if not isinstance(content, dict):
        return float(content)
    ((kind, inner),) = content.items()
    return float(READERS[kind](inner))


READERS: Mapping[str, Callable[[Any], Any]] = {
    "str": "".join,
    "int": lambda content: int(content, 16),
    "float": float,
    "nan": _read_nan,
    "complex": lambda content: complex(*map(_read_part, content)),
}
