"""Calls for several machines or regions at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

MAX_CONCURRENT_CALLS = 16

T = TypeVar("T")
R = TypeVar("R")


def parallel(function: Callable[[T], R], arguments: Iterable[T]) -> list[R | Exception]:
    """Call `function` for each argument, in parallel. Returns results and exceptions, in order."""

    def call(argument: T) -> R | Exception:
        try:
            return function(argument)
        except Exception as error:  # noqa: BLE001 - returned to the caller
            return error

    arguments = list(arguments)
    if len(arguments) <= 1:
        return [call(argument) for argument in arguments]
    with ThreadPoolExecutor(min(len(arguments), MAX_CONCURRENT_CALLS), thread_name_prefix="azure") as pool:
        return list(pool.map(call, arguments))


def unwrap(result: R | Exception) -> R:
    """The result. Raises it if it is an exception."""
    if isinstance(result, Exception):
        raise result
    return result
