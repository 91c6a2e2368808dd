"""Requests that compute for long: a few at once of each user, and of all."""

from __future__ import annotations

import asyncio

import pytest

from perdure.controller.api.access import work_slots
from perdure.controller.api.access.work_slots import WorkSlots
from perdure.controller.submit.errors import Overloaded


async def hold(slots: WorkSlots, user: str, until: asyncio.Event, running: list[str]) -> None:
    async with slots.of(user):
        running.append(user)
        await until.wait()


async def turns() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_slots__of_one_user_leave_room_for_others() -> None:
    async def scenario() -> None:
        slots, until, running = WorkSlots(per_user=2, in_all=3), asyncio.Event(), list[str]()
        requests = [asyncio.create_task(hold(slots, user, until, running)) for user in ("a", "a", "a", "b", "c")]
        await turns()
        assert running == ["a", "a", "b"], "the third of a waits, and so does c, since three run"
        until.set()
        await asyncio.gather(*requests)
        assert sorted(running) == ["a", "a", "a", "b", "c"]
        assert not slots._users

    asyncio.run(scenario())


def test_slots__refuse_after_a_while_and_are_free_again() -> None:
    async def scenario() -> None:
        slots, until, running = WorkSlots(per_user=1, max_wait_s=0.01), asyncio.Event(), list[str]()
        first = asyncio.create_task(hold(slots, "a", until, running))
        await turns()
        with pytest.raises(Overloaded) as refused:
            async with slots.of("a"):
                pytest.fail("there is no slot")
        assert (refused.value.status, refused.value.retry_after_s) == (503, 5)
        until.set()
        await first
        async with slots.of("a"):
            assert running == ["a"]

    asyncio.run(scenario())


def test_slots__limit_those_that_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        monkeypatch.setattr(work_slots, "MAX_WAITING", 2)
        slots, until, running = WorkSlots(per_user=1), asyncio.Event(), list[str]()
        requests = [asyncio.create_task(hold(slots, "a", until, running)) for _ in range(2)]
        await turns()
        with pytest.raises(Overloaded):
            async with slots.of("a"):
                pytest.fail("there is no slot")
        until.set()
        await asyncio.gather(*requests)

    asyncio.run(scenario())
