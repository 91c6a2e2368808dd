"""A timeout for connections on which nothing arrives. It costs one timer per connection, not one per message."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType


class IdleConnectionTimer:
    """An async context manager that raises TimeoutError in its body when the connection has been idle for `idle_s`.

    `last_received_at` returns when the last data arrived, by the event loop's clock.
    """

    def __init__(self, last_received_at: Callable[[], float], idle_s: float) -> None:
        self._last_received_at = last_received_at
        self._idle_s = idle_s
        self._loop = asyncio.get_running_loop()
        self._timeout = asyncio.timeout(None)
        self._timer: asyncio.TimerHandle | None = None
        #: While true, time does not count as idle: the body is busy, and it is not waiting for the other side.
        self.suspended = False

    @property
    def idle_s(self) -> float:
        """How long nothing may arrive. It may be changed at any time."""
        return self._idle_s

    @idle_s.setter
    def idle_s(self, idle_s: float) -> None:
        was, self._idle_s = self._idle_s, idle_s
        if idle_s < was and self._timer is not None:  # the next check would come too late
            self._timer.cancel()
            self._check()

    async def __aenter__(self) -> IdleConnectionTimer:
        await self._timeout.__aenter__()
        self._timer = self._loop.call_later(self.idle_s, self._check)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._timeout.__aexit__(kind, error, trace)

    def _check(self) -> None:
        now = self._loop.time()
        quiet_s = 0.0 if self.suspended else now - self._last_received_at()
        if quiet_s >= self.idle_s:
            self._timeout.reschedule(now)
        else:
            self._timer = self._loop.call_later(self.idle_s - quiet_s, self._check)
