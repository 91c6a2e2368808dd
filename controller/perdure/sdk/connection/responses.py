"""Checks that a response comes from a controller, and not from another server at its address."""

from __future__ import annotations

from typing import Any, TypeVar, cast
from urllib.parse import quote

from perdure.sdk.connection.endpoint import ClientError

Response = TypeVar("Response")


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
