"""Wakes the requests that follow a job, or all jobs, when something changes. A hint: they also poll."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

MAX_CHANGED_IDS = 200
"""How many ids of changed jobs a `ChangeFeed` keeps; beyond, it only says that many jobs have changed."""


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
            async with asyncio.timeout_at(self._poll_at):  # `wait_for` would create a task each time
                await self._woken.wait()
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


class ChangeFeed:
    """The ids of all jobs that change. `JobUpdates.subscribe_all` creates it; use it on the event loop.

    `number`: how many feeds were created before it.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self._changed: set[int] = set()
        self._has_many = False
        self._woken = asyncio.Event()
        self.is_closed = False

    async def wait(self, timeout_s: float) -> None:
        """Wait until there is something to take, for `timeout_s` at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._woken.wait()

    def take(self) -> frozenset[int] | None:
        """The ids of the jobs that have changed since the last call; None if they are more than `MAX_CHANGED_IDS`."""
        changed = None if self._has_many else frozenset(self._changed)
        self._changed.clear()
        self._has_many = False
        if not self.is_closed:
            self._woken.clear()
        return changed

    def add(self, job_ids: set[int]) -> None:
        self._changed |= job_ids
        if len(self._changed) > MAX_CHANGED_IDS:
            self._has_many = True
            self._changed.clear()
        self._woken.set()

    def close(self) -> None:
        """End the feed: from now on, `wait` returns at once."""
        self.is_closed = True
        self._woken.set()


class JobUpdates:
    """Delivers updates of jobs. Publish from any thread; subscribe on the event loop."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._subscriptions: dict[int, set[Subscription]] = {}
        self._feeds: set[ChangeFeed] = set()
        self._feed_numbers = itertools.count()
        self._changed: deque[int] = deque()
        self._is_flush_scheduled = False
        #: Different after every change of a job.
        self.revision = 0

    @property
    def num_feeds(self) -> int:
        return len(self._feeds)

    def publish_job(self, job_id: int) -> None:
        """Wake the subscribers of a job that has changed."""
        self.revision += 1
        self._publish(job_id, True)
        loop = self._loop
        if self._feeds and loop is not None and not loop.is_closed():
            self._changed.append(job_id)
            if not self._is_flush_scheduled:
                self._is_flush_scheduled = True
                loop.call_soon_threadsafe(self._flush)

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

    @contextmanager
    def subscribe_all(self) -> Iterator[ChangeFeed]:
        """Enter this context before reading any job."""
        self._loop = asyncio.get_running_loop()
        feed = ChangeFeed(next(self._feed_numbers))
        self._feeds.add(feed)
        try:
            yield feed
        finally:
            self._feeds.discard(feed)

    def close_feeds(self) -> None:
        """End the feeds: the server stops. On the event loop."""
        for feed in self._feeds:
            feed.close()

    def _flush(self) -> None:
        self._is_flush_scheduled = False  # first: what is appended from now on schedules another flush
        changed = {self._changed.popleft() for _ in range(len(self._changed))}
        for feed in self._feeds:
            feed.add(changed)

    def _publish(self, job_id: int, has_changed: bool) -> None:
        loop = self._loop
        if loop is not None and job_id in self._subscriptions and not loop.is_closed():
            loop.call_soon_threadsafe(self._wake, job_id, has_changed)

    def _wake(self, job_id: int, has_changed: bool) -> None:
        for subscription in self._subscriptions.get(job_id, ()):
            subscription.wake(has_changed)
