"""The stream of hints."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from perdure.controller.api.access.job_owner_cache import JobOwnerCache
from perdure.controller.api.access.permissions import ALL, Caller
from perdure.controller.api.context import ApiContext
from perdure.controller.api.dashboard import events
from perdure.controller.api.dashboard.sign_in import BrowserSession, BrowserSessions
from perdure.controller.store.logs.followers import MAX_CHANGED_IDS, JobUpdates
from support.helpers.timing import scaled
from unit.controller.api.dashboard.conftest import Dashboard

Event = tuple[str, Any]


def follow(
    dashboard: Dashboard,
    scenario: Callable[[JobUpdates, Callable[[], Awaitable[Event]]], Awaitable[None]],
    session: BrowserSession | None = None,
    of: Callable[[ApiContext], Caller] = lambda context: Caller(context, "admin", ALL),
) -> None:
    """Run a scenario with a follower whose `hello` was received. `of`: who follows."""

    async def run() -> None:
        updates = JobUpdates()
        context = replace(dashboard.daemon.api_context, job_updates=updates)
        owners = JobOwnerCache(context.database)
        stream = events._hints(of(context), BrowserSessions(context), session, owners, 3600.0)
        parsed = _events(stream)

        async def next_event() -> Event:
            return await asyncio.wait_for(anext(parsed), scaled(10))

        assert (await next_event())[0] == "hello"
        await scenario(updates, next_event)
        await parsed.aclose()
        await stream.aclose()
        assert updates.num_feeds == 0

    asyncio.run(run())


async def _events(stream: AsyncIterator[bytes]) -> Any:
    async for data in stream:
        if data != b":\n\n":
            name, _, value = data.decode().strip().partition("\n")
            yield name.removeprefix("event: "), json.loads(value.removeprefix("data: "))


def test_events__name_the_jobs_that_change(dashboard: Dashboard) -> None:
    async def scenario(updates: JobUpdates, next_event: Callable[[], Awaitable[Event]]) -> None:
        await asyncio.to_thread(updates.publish_job, 7)
        assert await next_event() == ("jobs", {"ids": [7]})
        for job_id in (9, 8, 9):  # while the follower rests
            updates.publish_job(job_id)
        updates.publish_log(10)
        assert await next_event() == ("jobs", {"ids": [8, 9]})

    follow(dashboard, scenario)


def test_events__say_when_many_jobs_change(dashboard: Dashboard) -> None:
    async def scenario(updates: JobUpdates, next_event: Callable[[], Awaitable[Event]]) -> None:
        for job_id in range(MAX_CHANGED_IDS + 1):
            updates.publish_job(job_id)
        assert await next_event() == ("jobs", {"many": True})
        updates.publish_job(5)
        assert await next_event() == ("jobs", {"ids": [5]})

    follow(dashboard, scenario)


@pytest.mark.parametrize(
    ("followers", "interval_s", "longest_wait_s"),
    [(1, 0.25, 0.0), (2, 0.25, 0.008), (50, 0.25, 0.2), (100, 0.4, 0.4), (250, 1.0, 1.0), (500, 1.0, 1.0)],
)
def test_pace__spreads_many_followers(followers: int, interval_s: float, longest_wait_s: float) -> None:
    """Whatever their numbers are: those before them may be gone."""
    paces = [events.pace(number, followers) for number in range(7, followers + 7)]
    assert [interval for _, interval in paces] == pytest.approx([interval_s] * followers)
    waits = sorted(wait_s for wait_s, _ in paces)
    assert waits[0] == 0.0
    assert waits[-1] <= longest_wait_s
    steps = [later - earlier for earlier, later in itertools.pairwise(waits)]
    assert steps == pytest.approx([min(1 / events.MAX_HINTS_PER_S, events.MAX_INTERVAL_S / followers)] * len(steps))


def test_hints__reach_followers_one_after_the_other(dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch) -> None:
    """And none of them lacks a job that changed while it waited."""
    monkeypatch.setattr(events, "MAX_HINTS_PER_S", 10.0)

    async def scenario() -> None:
        updates, received = JobUpdates(), [[] for _ in range(4)]  # type: list[list[int]]
        context = replace(dashboard.daemon.api_context, job_updates=updates)

        async def read(ids: list[int]) -> None:
            sessions, owners = BrowserSessions(context), JobOwnerCache(context.database)
            async for name, data in _events(events._hints(Caller(context, "admin", ALL), sessions, None, owners, 3600)):
                ids += data["ids"] if name == "jobs" else []

        readers = [asyncio.create_task(read(ids)) for ids in received]
        await until(lambda: updates.num_feeds == 4)
        updates.publish_job(1)
        await until(lambda: [1] in received)
        assert received != [[1]] * 4, "not all at once"
        updates.publish_job(2)
        await until(lambda: received == [[1, 2]] * 4)
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)

    asyncio.run(scenario())


def test_events__end_when_the_server_stops(dashboard: Dashboard) -> None:
    async def scenario(updates: JobUpdates, next_event: Callable[[], Awaitable[Event]]) -> None:
        updates.close_feeds()
        with pytest.raises(StopAsyncIteration):
            await next_event()

    follow(dashboard, scenario)


def test_events__end_with_the_session(dashboard: Dashboard) -> None:
    now = dashboard.clock.now()

    async def scenario(updates: JobUpdates, next_event: Callable[[], Awaitable[Event]]) -> None:
        updates.publish_job(1)
        assert await next_event() == ("jobs", {"ids": [1]})
        dashboard.clock.at = now + 100
        updates.publish_job(2)
        with pytest.raises(StopAsyncIteration):
            await next_event()

    follow(dashboard, scenario, BrowserSession("s", now, now + 100))


def test_events__are_limited(dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "MAX_FOLLOWERS", 0)
    response = dashboard.caller.get("/api/v1/events?timeout_s=0")
    assert (response.status_code, response.headers["retry-after"]) == (503, "5")


def test_events__begin_with_hello(dashboard: Dashboard) -> None:
    response = dashboard.caller.get("/api/v1/events?timeout_s=0")
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["cache-control"] == "no-store"
    assert response.text.startswith("event: hello\n")


def test_hints__do_not_wait_for_a_busy_database(dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which sessions have ended is read ahead, and while a read takes long, what is known counts."""
    asyncio.run(_read_ahead(dashboard, monkeypatch))


async def _read_ahead(dashboard: Dashboard, monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = BrowserSessions(dashboard.daemon.api_context)
    reads, is_free = 0, threading.Event()
    now = asyncio.get_running_loop().time
    is_free.set()

    def read(_: BrowserSessions) -> frozenset[str]:
        nonlocal reads
        reads += 1
        assert is_free.wait(scaled(30))
        return frozenset({f"ended-{reads}"})

    monkeypatch.setattr(BrowserSessions, "_read_ended", read)
    await sessions.refresh()
    assert (reads, sessions._ended) == (1, {"ended-1"})
    is_free.clear()
    sessions._ended_read_at = now() - 3.0
    for _ in range(3):
        await sessions.refresh()  # returns, although the read goes on
    await until(lambda: reads == 2)
    assert sessions._ended == {"ended-1"}
    is_free.set()
    await until(lambda: sessions._ended == {"ended-1", "ended-2"})
    is_free.clear()
    sessions._ended_read_at = now() - 6.0
    too_old = asyncio.create_task(sessions.refresh())
    await until(lambda: reads == 3)
    assert not too_old.done(), "what is older than promised does not count"
    is_free.set()
    await too_old


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(scaled(10)):
        while not condition():
            await asyncio.sleep(0.01)
