"""A few threads for one piece of work. Unlike those of `concurrent.futures` they also work while the interpreter is
ending, when the last save may still be under way."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

S = TypeVar("S")
T = TypeVar("T")


class Job(Generic[T]):
    """Something that a thread is doing. `result` waits for it; raises what it raised."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._done = threading.Event()
        self._error: BaseException | None = None
        self._value: T

    def run(self) -> None:
        try:
            self._value = self._work()
        except BaseException as error:  # noqa: BLE001 - handed on by `result`
            self._error = error
        self._done.set()

    def result(self) -> T:
        self._done.wait()
        if self._error is not None:
            raise self._error
        return self._value


class Crew:
    """`threads` of them, as a context: they end with it, after what was submitted. Without any (0, or where none can
    be started: in Python 3.12 and later, near the end) `submit` does the work itself."""

    def __init__(self, threads: int, name: str) -> None:
        self._jobs: queue.SimpleQueue[Job[object] | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._run, name=name, daemon=True) for _ in range(threads)]

    def __enter__(self) -> Crew:
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
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def submit(self, work: Callable[[], T]) -> Job[T]:
        job = Job(work)
        if self._threads:
            self._jobs.put(job)  # type: ignore[arg-type]
        else:
            job.run()
        return job

    def map(self, work: Callable[[S], T], items: Iterable[S], *, ahead: int) -> Iterator[T]:
        """`work` of every item, in their order; at most `ahead` are begun before their turn."""
        under_way: deque[Job[T]] = deque()
        for item in items:
            if len(under_way) == ahead:
                yield under_way.popleft().result()
            under_way.append(self.submit(lambda item=item: work(item)))  # type: ignore[misc]
        while under_way:
            yield under_way.popleft().result()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job.run()
