"""What the API's answers look like, for its OpenAPI document: the typed mappings of `perdure.sdk.records`, as models.

Answers are not passed through them: they are written by `store.queries` and the like, and held to them by the tests.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, reduce
from operator import or_
from types import GenericAlias, UnionType
from typing import Any, get_args, get_origin, get_type_hints, is_typeddict

from pydantic import BaseModel, create_model

from perdure.sdk import records

Responses = dict[int | str, dict[str, Any]]


class Said(BaseModel):
    """What is wrong, where (a field; null for the whole request), and what to do."""

    message: str
    where: str | None
    fix: str


class Problem(BaseModel):
    error: Said


_MEANING = {
    400: "Bad input: nothing was changed",
    401: "The token is missing, wrong, or not worth this call",
    404: "There is no such thing",
    409: "It can not be done now",
    413: "It is too large",
    429: "The user has as many already as there may be: nothing was changed",
    503: "The database or the disk can not be used now: nothing was changed, try again",
}


def refusals(*statuses: int) -> Responses:
    """The documented refusals of a route, each of which is answered with a `Problem`."""
    return {status: {"model": Problem, "description": _MEANING[status]} for status in statuses}


def answer(what: Any, *, status: int = 200) -> Responses:
    """The documented good answer of a route: a typed mapping of `records`, or a list of them."""
    return {status: {"model": _plain(what)}}


def content(media_type: str, *, status: int = 200) -> Responses:
    """A good answer that is no JSON."""
    binary = {"type": "string"} if media_type.startswith("text/") else {"type": "string", "format": "binary"}
    return {status: {"content": {media_type: {"schema": binary}}}}


def _plain(hint: Any) -> Any:
    """`hint` with every typed mapping in it replaced by its model (pydantic takes none on Python 3.11)."""
    if is_typeddict(hint):
        return _model(hint)
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (list, dict):
        return GenericAlias(origin, tuple(_plain(argument) for argument in arguments))
    if origin is UnionType:
        return reduce(or_, (_plain(argument) for argument in arguments))
    return hint


@cache
def _model(record: type) -> type[BaseModel]:
    hints: Mapping[str, Any] = get_type_hints(record)
    fields: dict[str, Any] = {name: (_plain(hint), ...) for name, hint in hints.items()}
    inherited = record.__doc__ if record.__module__ == records.__name__ else None
    return create_model(record.__name__, __doc__=inherited, **fields)
