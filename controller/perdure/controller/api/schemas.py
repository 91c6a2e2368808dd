"""Response models for the OpenAPI document, made from the typed mappings of `perdure.sdk.connection.api_types`.

They do not validate responses at run time; the tests check that the responses match.
"""

from __future__ import annotations

import gzip
from collections.abc import Mapping
from functools import cache, reduce
from operator import or_
from types import GenericAlias, UnionType
from typing import Any, get_args, get_origin, get_type_hints, is_typeddict

from fastapi import Response
from pydantic import BaseModel, create_model

Responses = dict[int | str, dict[str, Any]]


class ErrorDetail(BaseModel):
    """What is wrong, where (a field; null for the whole request), and what to do."""

    message: str
    where: str | None
    fix: str


class ErrorResponse(BaseModel):
    error: ErrorDetail


_MEANING = {
    400: "Bad input: nothing was changed",
    401: "The token is missing, wrong, or not valid for this call",
    403: "The token's role does not allow this call, or what the token permits has been used up: nothing was changed",
    404: "There is no such thing, or it is another user's",
    409: "It cannot be done now",
    413: "It is too large",
    421: "another controller has this",
    429: "The user has reached a limit, or calls too often (then with Retry-After): nothing was changed",
    503: "The database or the disk is unavailable: nothing was changed, try again",
}


def error_responses(*statuses: int) -> Responses:
    """The documented error responses of a route. Where a token is required, its role may not suffice (403), and its
    user may call too often (429)."""
    documented = sorted({*statuses, *([403, 429] if 401 in statuses else [])})
    return {status: {"model": ErrorResponse, "description": _MEANING[status]} for status in documented}


def json_response(hint: Any, *, status: int = 200) -> Responses:
    """The documented successful response of a route: a typed mapping, or a list of them."""
    return {status: {"model": _plain(hint)}}


def raw_response(media_type: str, *, status: int = 200) -> Responses:
    """The documented successful response of a route that does not return JSON."""
    if media_type == "text/event-stream":  # OpenAPI 3.1 has no word for events: a schema would be that of each of them
        return {status: {"content": {media_type: {}}}}
    binary = {"type": "string"} if media_type.startswith("text/") else {"type": "string", "format": "binary"}
    return {status: {"content": {media_type: {"schema": binary}}}}


def accepts_gzip(headers: Mapping[str, str]) -> bool:
    """Whether a request with these headers, by lower-case names, may be answered compressed."""
    return "gzip" in headers.get("accept-encoding", "")


def compressed(body: bytes) -> bytes:
    """`body` by gzip, quickly: a list of jobs becomes a tenth."""
    return gzip.compress(body, 1, mtime=0)


def json_bytes(body: bytes, *, is_gzip: bool) -> Response:
    """A response whose JSON is serialized already, and compressed if `is_gzip`."""
    headers = {"Vary": "Accept-Encoding", **({"Content-Encoding": "gzip"} if is_gzip else {})}
    return Response(body, media_type="application/json", headers=headers)


def _plain(hint: Any) -> Any:
    """`hint` with every typed mapping in it replaced by its model (pydantic rejects them on Python 3.11)."""
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
    inherited = record.__doc__ if record.__module__.startswith("perdure.") else None
    return create_model(record.__name__, __doc__=inherited, **fields)
