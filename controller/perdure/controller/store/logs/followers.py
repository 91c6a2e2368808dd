"""Wakes the requests that follow a job when it or its log changes. A hint: they also poll."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager


class Subscription:
    """Updates of one job. `JobUpdates.subscribe` creates it; use it on the event loop."""

    def __init__(self, poll_s: float) -> None:
        self._poll_s = poll_s
        self._loop = asyncio.get_running_loop()
        self._poll_at = self._loop.time() + poll_s
        self._woken = asyncio.Event()
        self._has_changed = False

    async def wait(self) -> bool:
        """Wait for an update since the last return; updates that arrive between two calls are not missed.

        Returns True if the job may have changed, and False if only its log has grown. Returns True every `poll_s`
        seconds without an update, since notifications may be lost.
        """
        try:
            await asyncio.wait_for(self._woken.wait(), max(0.0, self._poll_at - self._loop.time()))
        except TimeoutError:
            self._has_changed = True
        if self._loop.time() >= self._poll_at:
            self._has_changed = True
        if has_changed := self._has_changed:
            self._poll_at = self._loop.time() + self._poll_s
        self._woken.clear()
        self._has_changed = False
        return has_changed

    def wake(self, has_changed: bool) -> None:
        self._has_changed = self._has_changed or has_changed
        self._woken.set()


class JobUpdates:
    """Delivers updates of jobs. Publish from any thread; subscribe on the event loop."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._subscriptions: dict[int, set[Subscription]] = {}

    def publish_job(self, job_id: int) -> None:
        """Wake the subscribers of a job that has changed."""
        self._publish(job_id, True)

    def publish_log(self, job_id: int) -> None:
        """Wake the subscribers of a job whose log has grown. The job itself has not changed."""
        self._publish(job_id, False)

    @contextmanager
    def subscribe(self, job_id: int, poll_s: float) -> Iterator[Subscription]:
        """Enter this context before reading the job for the first time."""
        self._loop = asyncio.get_running_loop()
        subscription = Subscription(poll_s)
        self._subscriptions.setdefault(job_id, set()).add(subscription)
        try:
            yield subscription
        finally:
            self._subscriptions[job_id].discard(subscription)
            if not self._subscriptions[job_id]:
                del self._subscriptions[job_id]

    def _publish(self, job_id: int, has_changed: bool) -> None:
        loop = self._loop
        if loop is not None and job_id in self._subscriptions and not loop.is_closed():
            loop.call_soon_threadsafe(self._wake, job_id, has_changed)

    def _wake(self, job_id: int, has_changed: bool) -> None:
        for subscription in self._subscriptions.get(job_id, ()):
            subscription.wake(has_changed)
