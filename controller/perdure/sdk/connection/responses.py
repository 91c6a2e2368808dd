"""Parses responses, and checks that they come from a controller and not from another server at its address."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, TypeVar, cast
from urllib.parse import quote

from perdure.sdk.connection.endpoint import ClientError

Response = TypeVar("Response")
# In JSON, the escape of a character that may control a terminal. A line break does not.
_ESCAPE = re.compile(r'(?<!\\)(?:\\\\)*\\[^"\\/n]')


class NotAController(ClientError):
    """Another server answers at the controller's address."""

    def __init__(self, url: str, answer: str = "") -> None:
        """`answer`: what the server answered."""
        message = f"the server at {quote(url, safe=':/')} is not a perdure controller"
        super().__init__(message + (f": it answered {answer}" if answer else ""), fix="check PERDURE_ENDPOINT")


def expect(kind: type[Response], value: Any, url: str) -> Response:
    """`value` as a mapping of `kind`, a TypedDict. Raises NotAController if it has none of its fields.

    One field is enough: a controller of another version may lack some.
    """
    if not isinstance(value, dict) or not value.keys() & kind.__annotations__.keys():
        raise NotAController(url, f"{type(value).__name__} without fields of {kind.__name__}")
    return cast(Response, value)


def expect_list(kind: type[Response], value: Any, url: str) -> list[Response]:
    """`value` as a list of `kind`, as `expect` returns it."""
    if not isinstance(value, list):
        raise NotAController(url, f"{type(value).__name__} instead of a list")
    return [expect(kind, item, url) for item in value]


def parse_clean(body: bytes, clean: Callable[[Any], Any]) -> Any:
    """The JSON value, with the control characters of its strings escaped by `clean`.

    That takes several times as long as parsing, so it is left out if the text shows that there are none. Raises
    ValueError.
    """
    text = body.decode("utf-8", "surrogatepass")
    value = json.loads(text)
    return value if text.isprintable() and not _ESCAPE.search(text) else clean(value)
