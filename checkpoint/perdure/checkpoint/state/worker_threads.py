"""A few threads for one operation. Unlike those of `concurrent.futures` they also run while the interpreter shuts down,
when the last save may still be in progress."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

S = TypeVar("S")
T = TypeVar("T")


class Future(Generic[T]):
    """Work that a thread does. `result` waits for it and raises what it raised."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._done = threading.Event()
        self._error: BaseException | None = None
        self._value: T

    def run(self) -> None:
        try:
            self._value = self._work()
        except BaseException as error:  # noqa: BLE001 - raised by `result`
            self._error = error
        self._done.set()

    def result(self) -> T:
        self._done.wait()
        if self._error is not None:
            raise self._error
        return self._value


class WorkerThreads:
    """A context with `threads` threads, which end with it, once all submitted work is done.

    Without any thread `submit` does the work itself. That is so for 0 threads, and if none can be started: in Python
    3.12 and later, while the interpreter shuts down.
    """

    def __init__(self, threads: int, name: str) -> None:
        self._queue: queue.SimpleQueue[Future[object] | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._run, name=name, daemon=True) for _ in range(threads)]

    def __enter__(self) -> WorkerThreads:
        started: list[threading.Thread] = []
        for thread in self._threads:
            try:
                thread.start()
            except RuntimeError:
                break
            started.append(thread)
        self._threads = started
        return self

    def __exit__(self, *_: object) -> None:
        for _thread in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()

    def submit(self, work: Callable[[], T]) -> Future[T]:
        future = Future(work)
        if self._threads:
            self._queue.put(future)  # type: ignore[arg-type]
        else:
            future.run()
        return future

    def map(self, work: Callable[[S], T], items: Iterable[S], *, ahead: int) -> Iterator[T]:
        """The result of `work` for every item, in their order; at most `ahead` items are in progress at a time."""
        pending: deque[Future[T]] = deque()
        for item in items:
            if len(pending) == ahead:
                yield pending.popleft().result()
            pending.append(self.submit(lambda item=item: work(item)))  # type: ignore[misc]
        while pending:
            yield pending.popleft().result()

    def _run(self) -> None:
        while (future := self._queue.get()) is not None:
            future.run()
