"""Who follows a job is woken by all that happens to it, and by nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from perdure.controller.changes import Changes, Follower

NEVER_S = 3600.0


def following(scenario: Callable[[Changes, Follower], Awaitable[None]], look_again_s: float = NEVER_S) -> None:
    async def run() -> None:
        changes = Changes()
        with changes.follow(1, look_again_s) as follower:
            await asyncio.wait_for(scenario(changes, follower), 10.0)
        assert not changes._followers

    asyncio.run(run())


def test_what_is_told_while_the_follower_looks_is_not_missed() -> None:
    async def scenario(changes: Changes, follower: Follower) -> None:
        for _ in range(2):
            changes.grew(1)
            await asyncio.to_thread(changes.grew, 1)  # the follower is busy, and does not wait
            assert await follower.wait() is False

    following(scenario)


def test_a_change_of_the_job_is_told_from_more_of_its_log() -> None:
    async def scenario(changes: Changes, follower: Follower) -> None:
        for tell, has_changed in (([changes.grew], False), ([changes.tell, changes.grew], True)):
            for one in tell:
                one(1)
            assert await follower.wait() is has_changed

    following(scenario)


def test_nothing_else_wakes_and_all_that_was_told_wakes_once() -> None:
    async def scenario(changes: Changes, follower: Follower) -> None:
        changes.grew(1)
        changes.tell(2)
        assert await follower.wait() is False
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(follower.wait(), 0.05)

    following(scenario)


def test_a_follower_looks_at_the_job_now_and_then_however_much_its_log_grows() -> None:
    async def scenario(changes: Changes, follower: Follower) -> None:
        assert await follower.wait() is True  # nothing was told
        while True:
            changes.grew(1)
            if await follower.wait():
                return

    following(scenario, look_again_s=0.02)
