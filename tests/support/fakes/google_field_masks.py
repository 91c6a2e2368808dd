"""Partial responses of Google's APIs: `fields=items/*(name,zone),nextPageToken` omits everything else.

cloud.google.com/compute/docs/api/using-rest: names joined by commas, `a/b` for a field of `a`, `a(b,c)` for several
fields of it, `*` for any name. A mask applies to each element of a list.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from support.fakes.google_discovery import Invalid

Mask = dict[str, "Mask"]
_TOKEN = re.compile(r"[\w*]+|[,/()]")


def cut(answer: dict[str, Any], fields: str | None) -> dict[str, Any]:
    """The part of the response that the mask selects. Raises Invalid for an invalid mask."""
    if not fields:
        return answer
    if "".join(_TOKEN.findall(fields)) != fields:
        raise Invalid(400, "invalidParameter", f"Invalid field selection {fields}")
    tokens = _Tokens(iter(_TOKEN.findall(fields)))
    mask = _list(tokens)
    if tokens.current:
        raise Invalid(400, "invalidParameter", f"Invalid field selection {fields}")
    selected = _select(answer, mask)
    assert isinstance(selected, dict)
    return selected


class _Tokens:
    def __init__(self, rest: Iterator[str]) -> None:
        self._rest = rest
        self.current = next(rest, "")

    def take(self, expected: str | None = None) -> str:
        taken = self.current
        if not taken or (expected is not None and taken != expected) or (expected is None and taken in ",/()"):
            raise Invalid(400, "invalidParameter", f"Invalid field selection near {taken!r}")
        self.current = next(self._rest, "")
        return taken


def _list(tokens: _Tokens) -> Mask:
    mask = _one(tokens)
    while tokens.current == ",":
        tokens.take(",")
        mask |= _one(tokens)
    return mask


def _one(tokens: _Tokens) -> Mask:
    name, inner = tokens.take(), {}
    if tokens.current == "/":
        tokens.take("/")
        inner = _one(tokens)
    elif tokens.current == "(":
        tokens.take("(")
        inner = _list(tokens)
        tokens.take(")")
    return {name: inner}


def _select(value: Any, mask: Mask) -> Any:
    """The part of a value that the mask selects: all of it, if the mask is empty."""
    if not mask:
        return value
    if isinstance(value, list):
        return [_select(one, mask) for one in value]
    if not isinstance(value, dict):
        return value
    inner = {name: mask.get(name, mask.get("*")) for name in value}
    kept = {name: _select(value[name], part) for name, part in inner.items() if part is not None}
    return {name: one for name, one in kept.items() if one not in ({}, [])}
