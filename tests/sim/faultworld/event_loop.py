"""asyncio on virtual time: runs the real coroutines of node sessions, one callback after another, with no selector."""

from __future__ import annotations

import asyncio
from asyncio import events
from collections import deque
from collections.abc import Callable
from contextvars import Context
from typing import Any


class VirtualLoop(asyncio.AbstractEventLoop):
    """The event loop of one simulated process.

    `now` returns the time, `at` schedules a call, and `work` runs a function in a simulated thread. The loop calls
    `wake` when a callback is ready. A process that dies drops its loop with everything in it.
    """

    def __init__(
        self,
        *,
        now: Callable[[], float],
        at: Callable[..., object],
        work: Callable[[Callable[[], None]], object],
        wake: Callable[[], object],
    ) -> None:
        self._now, self._at, self._work, self._wake = now, at, work, wake
        self._ready: deque[asyncio.Handle] = deque()

    def run_ready(self) -> bool:
        """Run the callbacks that are ready, and those that they make ready. Returns False if there were none."""
        if not self._ready:
            return False
        events._set_running_loop(self)
        try:
            while self._ready:
                handle = self._ready.popleft()
                if not handle.cancelled():
                    handle._run()
        finally:
            events._set_running_loop(None)
        return True

    # --- the methods that asyncio requires of a loop -------------------------------------------------------

    def time(self) -> float:
        return self._now()

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        self._wake()
        return handle

    call_soon_threadsafe = call_soon

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now() + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._at(when, self._due, handle)
        return handle

    def _due(self, handle: asyncio.TimerHandle) -> None:
        if not handle.cancelled():
            self._ready.append(handle)
            self._wake()

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """A cancelled timer is skipped when it is due."""

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Any, *, name: str | None = None, context: Context | None = None) -> asyncio.Task[Any]:
        return asyncio.Task(coro, loop=self, name=name, context=context)

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        future = self.create_future()

        def work() -> None:
            try:
                result, error = func(*args), None
            except Exception as raised:
                result, error = None, raised
            if not future.done():
                future.set_exception(error) if error else future.set_result(result)

        self._work(work)
        return future

    def get_debug(self) -> bool:
        return False

    def is_closed(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Ignored: the invariants are checked on the state of the world instead."""
