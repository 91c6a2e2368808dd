"""Updates of jobs for the requests that follow them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from perdure.controller.store.logs.followers import JobUpdates, Subscription

NEVER_S = 3600.0


def run_subscribed(scenario: Callable[[JobUpdates, Subscription], Awaitable[None]], poll_s: float = NEVER_S) -> None:
    async def run() -> None:
        updates = JobUpdates()
        with updates.subscribe(1, poll_s) as subscription:
            await asyncio.wait_for(scenario(updates, subscription), 10.0)
        assert not updates._subscriptions

    asyncio.run(run())


def test_subscription__keeps_updates_between_two_waits() -> None:
    async def scenario(updates: JobUpdates, subscription: Subscription) -> None:
        for _ in range(2):
            updates.publish_log(1)
            await asyncio.to_thread(updates.publish_log, 1)  # no follower waits now
            assert await subscription.wait() is False

    run_subscribed(scenario)


def test_subscription__distinguishes_a_changed_job_from_a_grown_log() -> None:
    async def scenario(updates: JobUpdates, subscription: Subscription) -> None:
        for publish, has_changed in (
            ([updates.publish_log], False),
            ([updates.publish_job, updates.publish_log], True),
        ):
            for one in publish:
                one(1)
            assert await subscription.wait() is has_changed

    run_subscribed(scenario)


def test_subscription__wakes_once_and_only_for_its_job() -> None:
    async def scenario(updates: JobUpdates, subscription: Subscription) -> None:
        updates.publish_log(1)
        updates.publish_job(2)
        assert await subscription.wait() is False
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(subscription.wait(), 0.05)

    run_subscribed(scenario)


def test_subscription__reports_the_job_periodically_while_its_log_grows() -> None:
    async def scenario(updates: JobUpdates, subscription: Subscription) -> None:
        assert await subscription.wait() is True  # without any update
        while True:
            updates.publish_log(1)
            if await subscription.wait():
                return

    run_subscribed(scenario, poll_s=0.02)
