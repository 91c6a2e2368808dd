"""Wakes those who follow a job's log when there is more to see. A hint: followers look by themselves now and then."""

from __future__ import annotations

import asyncio


class Changes:
    """`tell` from any thread; `wait` on the event loop."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: dict[int, set[asyncio.Event]] = {}

    def tell(self, job_id: int) -> None:
        loop = self._loop
        if loop is not None and job_id in self._waiting and not loop.is_closed():
            loop.call_soon_threadsafe(self._wake, job_id)

    async def wait(self, job_id: int, timeout_s: float) -> None:
        """Return when something of the job has changed, or after `timeout_s`."""
        self._loop = asyncio.get_running_loop()
        changed = asyncio.Event()
        self._waiting.setdefault(job_id, set()).add(changed)
        try:
            await asyncio.wait_for(changed.wait(), timeout_s)
        except TimeoutError:
            pass
        finally:
            self._waiting[job_id].discard(changed)
            if not self._waiting[job_id]:
                del self._waiting[job_id]

    def _wake(self, job_id: int) -> None:
        for changed in self._waiting.get(job_id, ()):
            changed.set()
