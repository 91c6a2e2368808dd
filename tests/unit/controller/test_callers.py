"""Nodes come in a few at a time, and not before they can be heard."""

from __future__ import annotations

import asyncio
import functools
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from perdure.controller import callers, crowd
from perdure.controller.callers import Turnstile


def on_a_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(**fixtures: Any) -> None:
        asyncio.run(asyncio.wait_for(test(**fixtures), 20))

    return run


def entered(turnstile: Turnstile, count: int) -> list[int]:
    """Have `count` enter; their numbers come here as they are let in."""
    inside: list[int] = []

    def coming_in(number: int) -> Callable[[], None]:
        return lambda: inside.append(number)

    for number in range(count):
        turnstile.enter(coming_in(number))
    return inside


@on_a_loop
async def test_others_are_answered_between_those_who_come_in() -> None:
    turnstile = Turnstile()
    turnstile.open()
    inside = entered(turnstile, 100)
    seen = []
    while len(inside) < 100:
        seen.append(len(inside))
        await asyncio.sleep(0)
    assert inside == list(range(100))
    assert max(after - before for before, after in itertools.pairwise(seen)) == 16


@on_a_loop
async def test_nobody_comes_in_before_it_is_open() -> None:
    turnstile = Turnstile()
    inside = entered(turnstile, 3)
    for _ in range(5):
        await asyncio.sleep(0)
    assert inside == []
    await asyncio.to_thread(turnstile.open)
    while len(inside) < 3:
        await asyncio.sleep(0)


@on_a_loop
async def test_it_does_not_stay_shut_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callers, "OPENS_AFTER_S", 0.01)
    inside = entered(Turnstile(), 1)
    while not inside:
        await asyncio.sleep(0.001)
    assert inside == [0]


@on_a_loop
async def test_one_that_fails_holds_up_nobody() -> None:
    turnstile, told = Turnstile(), []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["exception"]))
    turnstile.open()

    def fail() -> None:
        raise RuntimeError("the connection broke")

    turnstile.enter(fail)
    inside = entered(turnstile, 1)
    while not inside:
        await asyncio.sleep(0)
    assert [type(error) for error in told] == [RuntimeError]


@pytest.mark.parametrize(
    ("nodes", "beat_s", "within_s"), [(1, 5.0, 0.0), (10_000, 8.0, 13.3), (1_000_000, 800.0, 60.0)]
)
def test_the_more_there_are_the_slower_they_speak(nodes: int, beat_s: float, within_s: float) -> None:
    assert crowd.beat_s(nodes, 5.0) == beat_s
    assert crowd.calls_within_s(nodes) == pytest.approx(within_s, abs=0.1)
