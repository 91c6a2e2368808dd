"""Ends the talk with a node that has gone silent, at the cost of one timer for as long as it talks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType


class Patience:
    """`async with` it around a talk: raises TimeoutError there once `heard_at` (of the loop's clock) is `silent_s` ago.

    While `is_busy`, it is not the other side that is waited for.
    """

    def __init__(self, heard_at: Callable[[], float], silent_s: float) -> None:
        self._heard_at = heard_at
        self.silent_s = silent_s
        self._loop = asyncio.get_running_loop()
        self._timeout = asyncio.timeout(None)
        self._timer: asyncio.TimerHandle | None = None
        self.is_busy = False

    async def __aenter__(self) -> Patience:
        await self._timeout.__aenter__()
        self._timer = self._loop.call_later(self.silent_s, self._look)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._timeout.__aexit__(kind, error, trace)

    def _look(self) -> None:
        now = self._loop.time()
        quiet_s = 0.0 if self.is_busy else now - self._heard_at()
        if quiet_s >= self.silent_s:
            self._timeout.reschedule(now)
        else:
            self._timer = self._loop.call_later(self.silent_s - quiet_s, self._look)
