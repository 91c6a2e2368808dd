"""Threads of a simulated process: greenlets that take turns where they wait, in an order that the seed decides.

What the controller's code takes for locks, events, futures and executors waits on virtual time here. A thread whose
process is frozen goes on when that is thawed; one whose process is dead ends where it waits.
"""

from __future__ import annotations

from asyncio import events
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING, Any

from greenlet import getcurrent, greenlet

if TYPE_CHECKING:
    from faultworld.process import Process


class Killed(BaseException):
    """The process is dead. Not an Exception: no code of the controller's may take it for one."""


class Thread(greenlet):
    """`reads`: it asks the database something outside of any transaction. `wait`: the number of its last wait."""

    process: Process
    reads = False
    wait = 0


class Threads:
    """The threads of one process."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._waiting: set[Thread] = set()
        self._asleep: list[tuple[Thread, int]] = []

    def start(self, do: Callable[..., object], *args: Any) -> None:
        """Run `do` in a thread of its own, until it first waits. Called by the world."""
        thread = Thread(do)
        thread.process = self._process
        thread.switch(*args)

    def block(self, until: Callable[[Callable[[], None]], object], timeout: float | None = None) -> None:
        """Have the current thread wait until what was handed to `until` is called, or for `timeout` seconds."""
        thread = getcurrent()
        assert isinstance(thread, Thread), "the world itself can not wait"
        assert events._get_running_loop() is None, "a coroutine waits as a thread does"
        thread.wait += 1
        number, scheduler = thread.wait, self._process.world.scheduler
        until(lambda: scheduler.after(0.0, self._go_on, thread, number))
        if timeout is not None:
            scheduler.after(timeout, self._go_on, thread, number)
        self._waiting.add(thread)
        assert thread.parent is not None
        thread.parent.switch()
        if not self._process.is_alive:
            raise Killed

    def sleep(self, seconds: float) -> None:
        self.block(lambda _: None, seconds)

    def thaw(self) -> None:
        """Have those go on that should have while the process stood still."""
        asleep, self._asleep = self._asleep, []
        for thread, number in asleep:
            self._process.world.scheduler.after(0.0, self._go_on, thread, number)

    def end(self) -> None:
        """The process is dead: end whatever waits. Called by the world."""
        waiting, self._waiting = self._waiting, set()
        for thread in waiting:
            thread.throw(Killed)

    def _go_on(self, thread: Thread, number: int) -> None:
        if thread.wait != number or thread not in self._waiting:
            return
        if self._process.is_frozen and self._process.is_alive:
            self._asleep.append((thread, number))
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
        for go_on in waiting:
            go_on()

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


class Awaited:
    """Stands for a future whose result a thread waits for."""

    def __init__(self, threads: Threads, future: Future[None]) -> None:
        self._threads, self._future = threads, future

    def result(self, timeout: float | None = None) -> None:
        if not self._future.done():
            self._threads.block(lambda go_on: self._future.add_done_callback(lambda _: go_on()), timeout)
        return self._future.result(0)


class Pool(Executor):
    """Stands for a pool of threads: each call begins a little later, beside all others."""

    def __init__(self, process: Process, within_s: float) -> None:
        self._process, self._within_s = process, within_s

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._process.soon(self._within_s, self._begin, future, fn, args)
        return future

    def _begin(self, future: Future[Any], fn: Callable[..., Any], args: tuple[Any, ...]) -> None:
        if future.set_running_or_notify_cancel():
            fn(*args)


class Single(Executor):
    """Stands for one thread: calls in the order in which they were given."""

    def __init__(self, process: Process, within_s: float) -> None:
        self._process, self._within_s = process, within_s
        self._queue: deque[tuple[Callable[..., Any], tuple[Any, ...]]] = deque()
        self._is_busy = False

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        self._queue.append((fn, args))
        if not self._is_busy:
            self._is_busy = True
            self._process.soon(self._within_s, self._work)
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
