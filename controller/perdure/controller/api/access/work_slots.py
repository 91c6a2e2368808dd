"""How many requests that compute for long may run at once: of one user, and of all. In memory, for one controller.

Such a request takes a thread of those that all routes share, and cannot be stopped. Others wait for their turn without
a thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from perdure.controller.submit.errors import Overloaded

PER_USER = 4
IN_ALL = 16  # of the 40 threads of Starlette
MAX_WAITING = 50
"""So many requests of one user may run or wait: each keeps its body in memory."""
MAX_WAIT_S = 10.0


@dataclass
class _UserSlots:
    free: asyncio.Semaphore
    requests: int = 0  # that run or wait


class WorkSlots:
    """On the event loop."""

    def __init__(self, per_user: int = PER_USER, in_all: int = IN_ALL, max_wait_s: float = MAX_WAIT_S) -> None:
        self._per_user, self._max_wait_s = per_user, max_wait_s
        self._free = asyncio.Semaphore(in_all)
        self._users: dict[str, _UserSlots] = {}

    @asynccontextmanager
    async def of(self, user: str) -> AsyncIterator[None]:
        """Hold a slot of a user. Raises Overloaded if there is none for too long."""
        own = self._users.setdefault(user, _UserSlots(asyncio.Semaphore(self._per_user)))
        if own.requests >= MAX_WAITING:
            raise _busy()
        own.requests += 1
        try:
            async with AsyncExitStack() as held:
                try:
                    async with asyncio.timeout(self._max_wait_s):
                        await held.enter_async_context(own.free)
                        await held.enter_async_context(self._free)
                except TimeoutError:
                    raise _busy() from None
                yield
        finally:
            own.requests -= 1
            if not own.requests:
                del self._users[user]


def _busy() -> Overloaded:
    return Overloaded("too many such requests are being computed", fix="try again in a while", status=503)
