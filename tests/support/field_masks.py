"""Partial answers of Google's APIs: `fields=items/*(name,zone),nextPageToken` leaves the rest out.

cloud.google.com/compute/docs/api/using-rest: names joined by commas, `a/b` for what lies in `a`, `a(b,c)` for several
of it, `*` for whatever there is. Lists are gone through.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from google_discovery import Invalid

Mask = dict[str, "Mask"]
_TOKEN = re.compile(r"[\w*]+|[,/()]")


def cut(answer: dict[str, Any], fields: str | None) -> dict[str, Any]:
    """What is left of the answer. Raises Invalid for a mask that can not be read."""
    if not fields:
        return answer
    if "".join(_TOKEN.findall(fields)) != fields:
        raise Invalid(400, "invalidParameter", f"Invalid field selection {fields}")
    tokens = _Tokens(iter(_TOKEN.findall(fields)))
    mask = _several(tokens)
    if tokens.now:
        raise Invalid(400, "invalidParameter", f"Invalid field selection {fields}")
    left = _left(answer, mask)
    assert isinstance(left, dict)
    return left


class _Tokens:
    def __init__(self, rest: Iterator[str]) -> None:
        self._rest = rest
        self.now = next(rest, "")

    def take(self, wanted: str | None = None) -> str:
        taken = self.now
        if not taken or (wanted is not None and taken != wanted) or (wanted is None and taken in ",/()"):
            raise Invalid(400, "invalidParameter", f"Invalid field selection near {taken!r}")
        self.now = next(self._rest, "")
        return taken


def _several(tokens: _Tokens) -> Mask:
    mask = _one(tokens)
    while tokens.now == ",":
        tokens.take(",")
        mask |= _one(tokens)
    return mask


def _one(tokens: _Tokens) -> Mask:
    name, inner = tokens.take(), {}
    if tokens.now == "/":
        tokens.take("/")
        inner = _one(tokens)
    elif tokens.now == "(":
        tokens.take("(")
        inner = _several(tokens)
        tokens.take(")")
    return {name: inner}


def _left(value: Any, mask: Mask) -> Any:
    """All of it, if the mask names nothing in it."""
    if not mask:
        return value
    if isinstance(value, list):
        return [_left(one, mask) for one in value]
    if not isinstance(value, dict):
        return value
    inner = {name: mask.get(name, mask.get("*")) for name in value}
    kept = {name: _left(value[name], found) for name, found in inner.items() if found is not None}
    return {name: one for name, one in kept.items() if one not in ({}, [])}
