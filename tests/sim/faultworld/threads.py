"""The threads of a simulated process, and substitutes for locks, events, futures and executors on virtual time.

A thread is a greenlet. It switches only where it waits, and the seed decides which thread continues. A thread of a
frozen process continues when the process is thawed. A thread of a dead process ends where it waits.
"""

from __future__ import annotations

from asyncio import events
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING, Any

from greenlet import getcurrent, greenlet

from perdure.controller.execute.call_types import CallFeedback, CloudCall

if TYPE_CHECKING:
    from faultworld.process import Process


class Killed(BaseException):
    """The process is dead. Not an Exception, so that the controller's code cannot handle it."""


class Thread(greenlet):
    """One thread of a simulated process."""

    process: Process
    is_reading = False  # the database, outside of a transaction
    wait_number = 0  # of its last wait


class Threads:
    """The threads of one process."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._waiting: set[Thread] = set()
        self._deferred: list[tuple[Thread, int]] = []  # the threads that were due while the process was frozen

    def start(self, do: Callable[..., object], *args: Any) -> None:
        """Run `do` in a new thread until it waits for the first time. Called by the world."""
        thread = Thread(do)
        thread.process = self._process
        thread.switch(*args)

    def block(self, register: Callable[[Callable[[], None]], object], timeout: float | None = None) -> None:
        """Block the current thread until the function that `register` receives is called, or for `timeout` seconds."""
        thread = getcurrent()
        assert isinstance(thread, Thread), "the world itself cannot wait"
        assert events._get_running_loop() is None, "a coroutine must not block"
        thread.wait_number += 1
        number, scheduler = thread.wait_number, self._process.world.scheduler
        register(lambda: scheduler.after(0.0, self._resume, thread, number))
        if timeout is not None:
            scheduler.after(timeout, self._resume, thread, number)
        self._waiting.add(thread)
        assert thread.parent is not None
        thread.parent.switch()
        if not self._process.is_alive:
            raise Killed

    def sleep(self, seconds: float) -> None:
        self.block(lambda _: None, seconds)

    def thaw(self) -> None:
        """Continue the threads that were due while the process was frozen."""
        deferred, self._deferred = self._deferred, []
        for thread, number in deferred:
            self._process.world.scheduler.after(0.0, self._resume, thread, number)

    def end(self) -> None:
        """End the threads of a dead process. Called by the world."""
        waiting, self._waiting = self._waiting, set()
        for thread in waiting:
            thread.throw(Killed)

    def _resume(self, thread: Thread, number: int) -> None:
        if thread.wait_number != number or thread not in self._waiting:
            return
        if self._process.is_frozen and self._process.is_alive:
            self._deferred.append((thread, number))
            return
        self._waiting.discard(thread)
        thread.switch()


class Event:
    """Stands for a `threading.Event`."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._is_set = False
        self._waiting: list[Callable[[], None]] = []

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        waiting, self._waiting = self._waiting, []
        for resume in waiting:
            resume()

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        if not self._is_set:
            self._threads.block(self._waiting.append, timeout)
        return self._is_set


class Lock:
    """Stands for a `threading.Lock`."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._is_held = False
        self._waiting: deque[Callable[[], None]] = deque()

    def __enter__(self) -> None:
        while self._is_held:
            self._threads.block(self._waiting.append)
        self._is_held = True

    def __exit__(self, *_: object) -> None:
        self._is_held = False
        if self._waiting:
            self._waiting.popleft()()


class BlockingFuture:
    """Stands for a future that a thread waits for."""

    def __init__(self, threads: Threads, future: Future[None]) -> None:
        self._threads, self._future = threads, future

    def result(self, timeout: float | None = None) -> None:
        if not self._future.done():
            self._threads.block(lambda resume: self._future.add_done_callback(lambda _: resume()), timeout)
        return self._future.result(0)


class WorkerPools:
    """Stands for the worker pools of the clouds: each call begins within `max_delay_s`, independently of all others."""

    def __init__(self, process: Process, max_delay_s: float, run: Callable[[CloudCall], CallFeedback]) -> None:
        self._process, self._max_delay_s, self._run = process, max_delay_s, run

    def submit(self, call: CloudCall, /) -> Future[Any]:
        future: Future[Any] = Future()
        self._process.within(self._max_delay_s, self._begin, future, call)
        return future

    def _begin(self, future: Future[Any], call: CloudCall) -> None:
        if future.set_running_or_notify_cancel():
            self._run(call)


class SingleThreadExecutor(Executor):
    """Stands for an executor with one thread: runs calls in order, the first within `max_delay_s`."""

    def __init__(self, process: Process, max_delay_s: float) -> None:
        self._process, self._max_delay_s = process, max_delay_s
        self._queue: deque[tuple[Callable[..., Any], tuple[Any, ...]]] = deque()
        self._is_busy = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self._queue.append((fn, args))
        if not self._is_busy:
            self._is_busy = True
            self._process.within(self._max_delay_s, self._work)
        return Future()

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._queue.clear()

    def _work(self) -> None:
        try:
            while self._queue:
                fn, args = self._queue.popleft()
                fn(*args)
        finally:
            self._is_busy = False
