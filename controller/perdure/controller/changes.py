"""Wakes those who follow a job's log when there is more to see. A hint: followers look by themselves now and then."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class Follower:
    """Somebody who looks at a job again and again. Made by `Changes.follow`; lives on the event loop."""

    def __init__(self, look_again_s: float) -> None:
        self._look_again_s = look_again_s
        self._loop = asyncio.get_running_loop()
        self._look_at = self._loop.time() + look_again_s
        self._told = asyncio.Event()
        self._has_changed = False

    async def wait(self) -> bool:
        """Return when something has happened since the last return, however long ago: nothing is missed that is told
        while the follower looks. Whether the job may have changed, which every so many seconds it may untold; if not,
        only its log grew."""
        try:
            await asyncio.wait_for(self._told.wait(), max(0.0, self._look_at - self._loop.time()))
        except TimeoutError:
            self._has_changed = True
        if self._loop.time() >= self._look_at:
            self._has_changed = True
        if has_changed := self._has_changed:
            self._look_at = self._loop.time() + self._look_again_s
        self._told.clear()
        self._has_changed = False
        return has_changed

    def wake(self, has_changed: bool) -> None:
        self._has_changed = self._has_changed or has_changed
        self._told.set()


class Changes:
    """`tell` and `grew` from any thread; `follow` on the event loop."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._followers: dict[int, set[Follower]] = {}

    def tell(self, job_id: int) -> None:
        """The job changed."""
        self._pass_on(job_id, True)

    def grew(self, job_id: int) -> None:
        """The job's log grew, and that is all."""
        self._pass_on(job_id, False)

    @contextmanager
    def follow(self, job_id: int, look_again_s: float) -> Iterator[Follower]:
        """To be entered before the first look."""
        self._loop = asyncio.get_running_loop()
        follower = Follower(look_again_s)
        self._followers.setdefault(job_id, set()).add(follower)
        try:
            yield follower
        finally:
            self._followers[job_id].discard(follower)
            if not self._followers[job_id]:
                del self._followers[job_id]

    def _pass_on(self, job_id: int, has_changed: bool) -> None:
        loop = self._loop
        if loop is not None and job_id in self._followers and not loop.is_closed():
            loop.call_soon_threadsafe(self._wake, job_id, has_changed)

    def _wake(self, job_id: int, has_changed: bool) -> None:
        for follower in self._followers.get(job_id, ()):
            follower.wake(has_changed)
