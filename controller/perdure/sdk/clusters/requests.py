"""Calls that the controller has accepted, and whose results are still to come."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import IO, Any, Generic, TypeVar, overload

Result = TypeVar("Result")


@dataclass(frozen=True)
class Request(Generic[Result]):
    """A call that the controller has accepted. `get` and `stream_and_get` return its result."""

    finish: Callable[[Callable[[str], None]], Result] = field(repr=False)  # receives what to call with each message


def done(result: Result) -> Request[Result]:
    """A request whose result is known."""
    return Request(lambda _: result)


@overload
def get(request: Request[Result]) -> Result: ...
@overload
def get(request: Result) -> Result: ...
def get(request: Any) -> Any:
    """The result of a request. Waits for what it is about. The results of `sdk.jobs` are returned as they are."""
    return request.finish(lambda _: None) if isinstance(request, Request) else request


@overload
def stream_and_get(request: Request[Result], output_stream: IO[str] | None = None) -> Result: ...
@overload
def stream_and_get(request: Result, output_stream: IO[str] | None = None) -> Result: ...
def stream_and_get(request: Any, output_stream: IO[str] | None = None) -> Any:
    """As `get`; writes what happens meanwhile to `output_stream` (stdout by default)."""
    note = partial(print, file=output_stream or sys.stdout, flush=True)
    return request.finish(note) if isinstance(request, Request) else request
