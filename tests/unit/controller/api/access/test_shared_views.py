"""All readers of a log share one reading of it, in one thread; none lacks what was there when it asked."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from functools import partialmethod
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest

from perdure.controller.api.access.shared_views import SharedViews
from perdure.controller.api.access.work_slots import WorkSlots
from perdure.controller.runtime.keys import AttemptKey
from perdure.controller.store.logs.file_logs import FileLogStore
from perdure.controller.store.logs.protocol import Chunk
from perdure.controller.store.logs.transcript_index import TranscriptIndex, TranscriptView
from perdure.controller.submit.errors import Overloaded
from support.helpers.timing import scaled
from unit.controller.store.logs.test_transcript_index import KnownTranscript, add_lines, info, whole_of


class GatedLogStore(FileLogStore):
    """`gate`: reads wait until it is set. `reads` counts those that have begun."""

    def __init__(self, home: Path) -> None:
        super().__init__(home)
        self.gate, self.reads = threading.Event(), 0

    def read_chunk(self, key: AttemptKey, chunk: Chunk) -> bytes:
        self.reads += 1
        assert self.gate.wait(scaled(60))
        return super().read_chunk(key, chunk)


async def same(view: TranscriptView) -> TranscriptView:
    return view


class World:
    """One log, and who reads it."""

    def __init__(self, home: Path, slots: WorkSlots | None = None) -> None:
        self.logs = GatedLogStore(home)
        self.attempts = [info(1, 1, has_ended=False)]
        self.slots = slots or WorkSlots()
        self.views = SharedViews(self.logs, self.slots)

    async def view(self, user: str = "ada") -> TranscriptView:
        return await self.read(same, user)

    async def read(self, function: Callable[[TranscriptView], Awaitable[Any]], user: str = "ada") -> Any:
        return (await self.views.apply(KnownTranscript(self.logs, self.attempts), user, function))[0]

    def ask(self, user: str = "ada") -> asyncio.Task[TranscriptView]:
        return asyncio.ensure_future(self.view(user))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(scaled(30)):
        while not condition():
            await asyncio.sleep(0.001)


def test_readers__share_one_thread(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path)
        add_lines(world.logs, 1000)
        readers = [world.ask() for _ in range(200)]
        try:
            await until(lambda: world.logs.reads > 0)
            assert anyio.to_thread.current_default_thread_limiter().borrowed_tokens == 1
        finally:
            world.logs.gate.set()
        views = await asyncio.gather(*readers)
        assert {view.num_lines for view in views} == {1001}

    asyncio.run(scenario())


def test_reader__gets_what_was_there_when_it_asked(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path)
        add_lines(world.logs, 1000)
        early = world.ask()
        await until(lambda: world.logs.reads > 0)
        add_lines(world.logs, 100)
        late = [world.ask() for _ in range(9)]
        await asyncio.sleep(0)
        world.logs.gate.set()
        assert (await early).num_lines == 1001
        assert {view.num_lines for view in await asyncio.gather(*late)} == {1101}

    asyncio.run(scenario())


def test_rest__of_every_reader_is_its_own(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path)
        world.logs.gate.set()
        add_lines(world.logs, 100)
        read = [world.views.apply(KnownTranscript(world.logs, world.attempts), "ada", same) for _ in range(3)]
        continued = [rest for _, _, rest in await asyncio.gather(*read)]
        world.logs.append((1, 0, 1), 0, world.logs.size((1, 0, 1), 0), b"new\n")
        assert [b"".join(rest.read_new()) for rest in continued] == [b"new\n"] * 3

    asyncio.run(scenario())


def test_reader__that_leaves_takes_nothing_from_the_others(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path)
        add_lines(world.logs, 1000)
        first, second = world.ask(), world.ask()
        await until(lambda: world.logs.reads > 0)
        first.cancel()
        await asyncio.wait({first})
        world.logs.gate.set()
        assert (await second).num_lines == 1001

    asyncio.run(scenario())


def test_reading__goes_on_with_the_slots_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ada's slots become busy after the first step. Bob waits for her reading, and continues it."""

    async def scenario() -> None:
        world = World(tmp_path, WorkSlots(per_user=1, max_wait_s=0.05))
        add_lines(world.logs, 2000)
        monkeypatch.setattr(TranscriptIndex, "read_step", partialmethod(TranscriptIndex.read_step, 0.0))
        ada, bob = world.ask("ada"), world.ask("bob")
        await until(lambda: world.logs.reads > 0)
        busy = asyncio.Event()

        async def hold() -> None:
            async with world.slots.of("ada"):
                await busy.wait()

        holder = asyncio.ensure_future(hold())
        await asyncio.sleep(0)
        world.logs.gate.set()
        with pytest.raises(Overloaded):
            await ada
        world.logs.append((1, 0, 1), 0, world.logs.size((1, 0, 1), 0), b"new\n")
        late = world.ask("bob")
        first, second = await bob, await late
        assert (first.num_lines, second.num_lines) in [(2001, 2002), (2002, 2002)]
        assert b"".join(second.pieces(0, second.size)) == whole_of(world.logs, world.attempts)
        busy.set()
        await holder

    asyncio.run(scenario())


def test_reader__of_a_log_that_was_deleted_gets_what_is_left(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path)
        world.logs.gate.set()
        add_lines(world.logs, 100)
        assert (await world.view()).num_lines == 101
        world.logs.remove(1)

        async def second_line(view: TranscriptView) -> list[bytes]:
            return view.lines(1, 1)

        async def fail(_: TranscriptView) -> None:
            raise FileNotFoundError("it is being deleted")

        assert await world.read(second_line) == []
        assert (await world.view()).num_lines == 1
        with pytest.raises(FileNotFoundError, match="being deleted"):
            await world.read(fail)

    asyncio.run(scenario())


def test_reader__continues_what_was_read_before(tmp_path: Path) -> None:
    async def scenario() -> None:
        world = World(tmp_path)
        world.logs.gate.set()
        add_lines(world.logs, 500)
        await world.view()
        read = world.logs.reads
        add_lines(world.logs, 100)
        assert (await world.view()).num_lines == 601
        assert world.logs.reads == read + 1

    asyncio.run(scenario())
