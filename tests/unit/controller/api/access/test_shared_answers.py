"""Many requests for one thing share a computation, and none gets an answer from before a change."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest

from perdure.controller.api.access import shared_answers
from perdure.controller.api.access.shared_answers import SharedAnswers


class World:
    """What is asked for: its revision. `computed` counts."""

    def __init__(self) -> None:
        self.revision = self.computed = 0
        self.answers = SharedAnswers(lambda: self.revision)
        self.gate = asyncio.Event()
        self.gate.set()

    async def compute(self) -> bytes:
        self.computed += 1
        seen = self.revision
        await self.gate.wait()
        return b"%d" % seen

    @property
    def kept(self) -> list[str]:
        return list(self.answers._answers)  # type: ignore[arg-type]

    async def ask(self, key: str = "all") -> bytes:
        return await self.answers.of(key, self.compute)


def test_answers__are_computed_once_while_nothing_changes() -> None:
    async def scenario() -> None:
        world = World()
        assert set(await asyncio.gather(*(world.ask() for _ in range(100)))) == {b"0"}
        assert await world.ask() == b"0"
        assert world.computed == 1
        assert await world.ask("those of ada") == b"0"
        assert world.computed == 2

    asyncio.run(scenario())


def test_answers__never_lack_what_changed_before_they_were_requested(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_answers, "MIN_INTERVAL_S", 0.01)

    async def scenario() -> None:
        world = World()
        world.gate.clear()
        early = asyncio.ensure_future(world.ask())
        while not world.computed:
            await asyncio.sleep(0)
        world.revision = 1
        late = [asyncio.ensure_future(world.ask()) for _ in range(10)]
        await asyncio.sleep(0)
        assert world.computed == 1
        world.gate.set()
        assert await early == b"0"
        assert set(await asyncio.gather(*late)) == {b"1"}
        assert world.computed == 2

    asyncio.run(scenario())


def test_answers__are_computed_at_most_so_often_while_all_changes() -> None:
    async def scenario() -> None:
        world, loop = World(), asyncio.get_running_loop()
        began = loop.time()
        for _ in range(3):
            world.revision += 1
            wanted = b"%d" % world.revision
            assert set(await asyncio.gather(*(world.ask() for _ in range(20)))) == {wanted}
        assert world.computed == 3
        assert loop.time() - began >= 2 * shared_answers.MIN_INTERVAL_S

    asyncio.run(scenario())


def test_answers__that_are_old_are_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_answers, "MAX_AGE_S", 0.0)
    monkeypatch.setattr(shared_answers, "MIN_INTERVAL_S", 0.0)

    async def scenario() -> None:
        world = World()
        await world.ask()
        await world.ask()
        assert world.computed == 2

    asyncio.run(scenario())


def test_failure__reaches_those_who_waited_and_nobody_else() -> None:
    async def scenario() -> None:
        world = World()
        failures = 0

        async def fail() -> bytes:
            nonlocal failures
            failures += 1
            await asyncio.sleep(0)
            raise ValueError("no")

        asked = [world.answers.of("all", fail) for _ in range(3)]
        results = await asyncio.gather(*asked, return_exceptions=True)
        assert [str(result) for result in results] == ["no"] * 3
        assert failures == 1
        assert await world.ask() == b"0"

    asyncio.run(scenario())


def test_answers__that_are_old_are_dropped_when_another_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shared_answers, "MAX_AGE_S", 0.0)

    async def scenario() -> None:
        world = World()
        for user in ("ada", "bob", "eve"):
            await world.ask(user)
        assert world.kept == ["eve"]

    asyncio.run(scenario())


def test_answers__that_were_not_used_for_longest_are_dropped_when_there_are_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared_answers, "_MAX_ANSWERS", 3)
    monkeypatch.setattr(shared_answers, "MAX_AGE_S", 3600.0)

    async def scenario() -> None:
        world = World()
        world.gate.clear()
        early = [asyncio.ensure_future(world.ask(user)) for user in "abcd"]
        await asyncio.sleep(0)
        assert world.kept == ["b", "c", "d"]
        world.gate.set()
        assert await asyncio.gather(*early) == [b"0"] * 4
        await world.ask("b")
        await world.ask("e")
        assert world.kept == ["d", "b", "e"]

    asyncio.run(scenario())


def test_answers__that_were_not_used_for_longest_are_dropped_when_all_are_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared_answers, "_MAX_ANSWER_BYTES", 10)
    monkeypatch.setattr(shared_answers, "MAX_AGE_S", 3600.0)

    async def scenario() -> None:
        world = World()

        async def answer(size: int) -> bytes:
            return b"x" * size

        for key, size in [("a", 4), ("b", 4), ("c", 4)]:
            assert len(await world.answers.of(key, partial(answer, size))) == size
            await asyncio.sleep(0)
        assert world.kept == ["b", "c"]
        assert len(await world.answers.of("d", partial(answer, 11))) == 11
        await asyncio.sleep(0)
        assert world.kept == []

    asyncio.run(scenario())
