"""Decodes a page of a list one object at a time: five hundred whole pods at once take 15 MiB."""

from __future__ import annotations

import re
from collections.abc import Callable
from json import JSONDecodeError, JSONDecoder
from typing import Any

_DECODER = JSONDecoder()
_SPACE = re.compile(r"[ \t\n\r]*")


def decode_page(body: bytes, reduce: Callable[[dict[str, Any]], dict[str, Any]]) -> dict[str, Any]:
    """The list object of a response, whose `items` are reduced as they are decoded. Raises ValueError."""
    text = body.decode()
    page: dict[str, Any] = {}
    at = _after(text, 0, "{")
    while text[at : at + 1] != "}":
        name, at = _DECODER.raw_decode(text, at)
        at = _after(text, at, ":")
        if name == "items" and text[at : at + 1] == "[":
            page[name], at = _items(text, at, reduce)
        else:
            page[name], at = _DECODER.raw_decode(text, at)
        at = _next(text, at, "}")
    return page


def _items(text: str, at: int, reduce: Callable[[dict[str, Any]], dict[str, Any]]) -> tuple[list[dict[str, Any]], int]:
    """The reduced items of the array that begins at `at`, and where it ends."""
    items = []
    at = _after(text, at, "[")
    while text[at : at + 1] != "]":
        item, at = _DECODER.raw_decode(text, at)
        items.append(reduce(item))
        at = _next(text, at, "]")
    return items, at + 1


def _next(text: str, at: int, end: str) -> int:
    """Where the next member begins, or where `end` is."""
    at = _skip(text, at)
    return at if text[at : at + 1] == end else _after(text, at, ",")


def _after(text: str, at: int, mark: str) -> int:
    at = _skip(text, at)
    if text[at : at + 1] != mark:
        raise JSONDecodeError(f"Expecting {mark!r}", text, at)
    return _skip(text, at + 1)


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at
