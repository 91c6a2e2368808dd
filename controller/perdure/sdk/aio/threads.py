"""Runs functions that block in threads, for asyncio.

The threads are daemons and belong to no executor: `asyncio.run` waits for an executor's threads at its end, and one
that follows a log would keep a program that was interrupted from ending.
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

from perdure.sdk.clusters import requests
from perdure.sdk.clusters.requests import Request

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def in_thread(function: Callable[Arguments, Result]) -> Callable[Arguments, Coroutine[Any, Any, Result]]:
    """`function` as a coroutine function."""

    @functools.wraps(function)
    async def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        return await _run(lambda: function(*args, **kwargs), function.__name__)

    return call


def finished(function: Callable[Arguments, Request[Result]]) -> Callable[Arguments, Coroutine[Any, Any, Result]]:
    """`function` as a coroutine function that returns the result of its request."""

    @functools.wraps(function)
    async def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        return await _run(lambda: requests.get(function(*args, **kwargs)), function.__name__)

    return call


async def _run(call: Callable[[], Result], name: str) -> Result:
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Result] = loop.create_future()

    def settle(result: Result | None, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]  # None only if that is the result

    def work() -> None:
        result, error = None, None
        try:
            result = call()
        except BaseException as raised:  # noqa: BLE001 - it belongs to whoever awaits
            error = raised
        with suppress(RuntimeError):  # the loop has been closed meanwhile: nobody awaits
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=work, name=f"perdure-{name}", daemon=True).start()
    return await future
