"""Micro-batching: calls that are made concurrently are executed together, in one thread."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from perdure.controller.runtime.loop_guard import LoopGuard

Request = TypeVar("Request")
Result = TypeVar("Result")

_MAX_BATCH_SIZE = 256


class Batcher(Generic[Request, Result]):
    """Executes requests in batches, one batch at a time.

    While one batch is executed, the next one collects. The thread starts with the first request; it ends with the
    process.
    """

    def __init__(
        self,
        name: str,
        execute: Callable[[Sequence[Request]], Sequence[Result | Exception]],
        linger_s: Callable[[Sequence[Request]], float] = lambda _: 0.0,
    ) -> None:
        """`name`: of the thread. `execute` returns one result per request, in their order.

        An exception among the results is raised to the caller of that request; one that `execute` raises, to all.
        `linger_s`: the least time from the start of this batch to that of the next, so that more requests share it.
        """
        self._name = name
        self._execute = execute
        self._linger_s = linger_s
        self._never = threading.Event()
        self._queue: queue.SimpleQueue[tuple[Request, asyncio.Future[Result]]] = queue.SimpleQueue()
        self._start_lock = threading.Lock()
        self._is_started = False

    async def submit(self, request: Request) -> Result:
        """Execute `request` in the next batch, and return its result."""
        if not self._is_started:
            self._start()
        result: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._queue.put((request, result))
        return await result

    def _start(self) -> None:
        with self._start_lock:
            if not self._is_started:
                threading.Thread(target=self._run, name=self._name, daemon=True).start()
            self._is_started = True

    def _run(self) -> None:
        guard, next_at = LoopGuard(self._name), 0.0
        while True:
            batch = [self._queue.get()]
            if (early_s := next_at - time.monotonic()) > 0.0:
                self._never.wait(early_s)
            while len(batch) < _MAX_BATCH_SIZE and not self._queue.empty():
                batch.append(self._queue.get())
            requests = [request for request, _ in batch]
            started_at = time.monotonic()
            results = self._results_of(requests)
            with guard:
                _deliver(batch, results)
                next_at = started_at + self._linger_s(requests)

    def _results_of(self, requests: Sequence[Request]) -> Sequence[Result | Exception]:
        """One result per request, whatever happens."""
        try:
            results = self._execute(requests)
            if len(results) != len(requests):
                raise RuntimeError(f"{len(results)} results for {len(requests)} requests")
        except Exception as error:  # noqa: BLE001 - raised where it is awaited
            return [error] * len(requests)
        return results


def _deliver(batch: Sequence[tuple[Request, asyncio.Future[Result]]], results: Sequence[Result | Exception]) -> None:
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Result], Result | Exception]]] = {}
    for (_, future), result in zip(batch, results, strict=True):
        by_loop.setdefault(future.get_loop(), []).append((future, result))
    for loop, completed in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(_resolve, completed)


def _resolve(completed: Sequence[tuple[asyncio.Future[Result], Result | Exception]]) -> None:
    for future, result in completed:
        if future.done():
            continue  # its caller was cancelled
        if isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)
