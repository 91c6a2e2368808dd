"""The stream of hints."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

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
        stream = events._hints(of(context), BrowserSessions(context), session, 3600.0)
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
