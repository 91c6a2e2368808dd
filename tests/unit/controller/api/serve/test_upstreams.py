"""Connections of a proxy: carried to replicas, to others if one cannot be reached, held while there is none."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure.controller.api.serve.upstreams import Upstreams
from perdure.controller.maintenance.serve.proxy_state import ProxyTarget
from perdure.controller.store.records.agent_connections import Place
from perdure.controller.submit.errors import RequestRejected

REQUEST = b"POST / HTTP/1.1\r\n\r\n"


class Node:
    """The stream of a replica, which answers each piece with its name and what it has received."""

    def __init__(self, name: int, answer: bytes = b"") -> None:
        """`answer`: what it answers instead."""
        self.name = name
        self.answer = answer
        self.received: list[bytes] = []
        self.messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def send_bytes(self, data: bytes) -> None:
        self.received.append(data)
        answer = self.answer or b"%d:" % self.name + data
        self.messages.put_nowait({"type": "websocket.receive", "bytes": answer})

    async def receive(self) -> dict[str, Any]:
        return await self.messages.get()

    def end(self) -> None:
        self.messages.put_nowait({"type": "websocket.receive", "text": json.dumps({"type": "exit", "code": 0})})

    def lose(self) -> None:
        self.messages.put_nowait({"type": "websocket.disconnect"})


class Agents:
    """Opens streams. `unreachable`: the jobs of replicas to which no stream can be opened; `silent`: those whose nodes
    do not answer."""

    def __init__(self) -> None:
        self.unreachable: set[int] = set()
        self.silent: set[int] = set()
        self.answer = b""
        self.nodes: list[Node] = []

    @contextlib.asynccontextmanager
    async def open(self, place: Place, port: int, gone: asyncio.Future[None]) -> AsyncIterator[Any]:
        assert port == 8080
        if place[0][0] in self.unreachable:
            raise RequestRejected("not connected")
        if place[0][0] in self.silent:
            await gone
            raise OSError("the user has gone")
        node = Node(place[0][0], self.answer)
        self.nodes.append(node)
        yield node


def target(number: int, *, in_rotation: bool = True) -> ProxyTarget:
    return ProxyTarget(number, (number, 0, 1), 8080, in_rotation)


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="up-"))  # the path of a unix socket must be short
    yield path
    shutil.rmtree(path)


Scene = Callable[[Upstreams, Agents], Awaitable[None]]


def play(folder: Path, scene: Scene) -> None:
    async def run() -> None:
        agents = Agents()
        upstreams = Upstreams("model", folder, agents.open, lambda text: json.loads(text)["type"] == "exit")
        try:
            async with asyncio.timeout(20):
                await scene(upstreams, agents)
        finally:
            await upstreams.close()

    asyncio.run(run())


async def connect(folder: Path, name: str = "s0") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_unix_connection(str(folder / f"{name}.sock"))
    writer.write(REQUEST)
    return reader, writer


def test_upstreams__carry_both_directions_to_the_replica_of_a_slot(folder: Path) -> None:
    async def scene(upstreams: Upstreams, agents: Agents) -> None:
        await upstreams.apply({0: target(5), 1: target(6)}, "")
        reader, writer = await connect(folder, "s1")
        assert await reader.readexactly(len(REQUEST) + 2) == b"6:" + REQUEST
        assert (upstreams.num_connections(6), upstreams.num_connections(5)) == (1, 0)
        writer.write(b"more")
        assert await reader.readexactly(6) == b"6:more"
        agents.nodes[0].end()
        assert await reader.read() == b""

    play(folder, scene)


def test_upstreams__take_another_replica_if_no_byte_has_left(folder: Path) -> None:
    async def scene(upstreams: Upstreams, agents: Agents) -> None:
        agents.unreachable = {5}
        await upstreams.apply({0: target(5), 1: target(6)}, "")
        reader, _ = await connect(folder, "s0")
        assert await reader.readexactly(2) == b"6:"
        assert [node.received for node in agents.nodes] == [[REQUEST]]

    play(folder, scene)


def test_upstreams__never_repeat_what_a_replica_has_received(folder: Path) -> None:
    async def scene(upstreams: Upstreams, agents: Agents) -> None:
        await upstreams.apply({0: target(5), 1: target(6)}, "")
        reader, _ = await connect(folder, "s0")
        await reader.readexactly(2)
        agents.nodes[0].lose()
        with contextlib.suppress(ConnectionError):
            await reader.read()
        assert len(agents.nodes) == 1

    play(folder, scene)


def test_upstreams__hold_requests_until_a_replica_is_there(folder: Path) -> None:
    async def scene(upstreams: Upstreams, agents: Agents) -> None:
        await upstreams.apply({}, "")
        reader, _ = await connect(folder, "hold")
        while not upstreams.num_held:
            await asyncio.sleep(0)
        await upstreams.apply({0: target(5, in_rotation=False)}, "")
        await asyncio.sleep(0.05)
        assert agents.nodes == []
        assert upstreams.held_s() > 0.04
        await upstreams.apply({0: target(5)}, "")
        assert await reader.readexactly(2) == b"5:"
        assert upstreams.held_s() == 0.0
        assert upstreams.num_were_held(5) == 1

    play(folder, scene)


def test_upstreams__refuse_at_once_what_nobody_will_answer(folder: Path) -> None:
    async def scene(upstreams: Upstreams, _agents: Agents) -> None:
        await upstreams.apply({}, "")
        reader, _ = await connect(folder, "hold")
        while not upstreams.num_held:
            await asyncio.sleep(0)
        await upstreams.apply({}, "it cannot start")
        answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["message"] == "it cannot start"

    play(folder, scene)


def test_upstreams__refuse_a_request_that_is_still_being_sent(folder: Path) -> None:
    """A proxy that finds the connection closed answers with 502 instead."""

    async def scene(upstreams: Upstreams, _agents: Agents) -> None:
        await upstreams.apply({}, "it cannot start")
        reader, writer = await asyncio.open_unix_connection(str(folder / "hold.sock"))
        while not upstreams._carried:
            await asyncio.sleep(0)
        await asyncio.sleep(0.05)
        for _ in range(3):
            writer.write(b"POST / HTTP/1.1\r\n")
            await writer.drain()
            await asyncio.sleep(0.01)
        assert (await reader.read()).startswith(b"HTTP/1.1 503 ")

    play(folder, scene)


def test_upstreams__open_nothing_for_a_caller_that_has_gone(folder: Path) -> None:
    async def scene(upstreams: Upstreams, agents: Agents) -> None:
        await upstreams.apply({}, "")
        _, writer = await connect(folder, "hold")
        while not upstreams.num_held:
            await asyncio.sleep(0)
        writer.close()
        while upstreams.num_held:
            await asyncio.sleep(0)
        await upstreams.apply({0: target(5)}, "")
        await asyncio.sleep(0.05)
        assert agents.nodes == []

    play(folder, scene)


def test_upstreams__abort_the_connections_of_a_replica_that_is_gone(folder: Path) -> None:
    async def scene(upstreams: Upstreams, _agents: Agents) -> None:
        await upstreams.apply({0: target(5), 1: target(6)}, "")
        lost, _ = await connect(folder, "s0")
        kept, writer = await connect(folder, "s1")
        await lost.readexactly(2)
        await kept.readexactly(len(REQUEST) + 2)
        await upstreams.apply({1: target(6)}, "")
        with contextlib.suppress(ConnectionError):
            await lost.read()
        writer.write(b"on")
        assert await kept.readexactly(4) == b"6:on"

    play(folder, scene)


def test_upstreams__close_idle_connections_but_none_that_was_held(folder: Path) -> None:
    async def scene(upstreams: Upstreams, _agents: Agents) -> None:
        await upstreams.apply({0: target(5)}, "")
        idle, _ = await connect(folder, "s0")
        held, writer = await connect(folder, "hold")
        await idle.readexactly(len(REQUEST) + 2)
        await held.readexactly(len(REQUEST) + 2)
        upstreams.close_idle(5)
        with contextlib.suppress(ConnectionError):
            await idle.read()
        writer.write(b"on")
        assert await held.readexactly(4) == b"5:on"

    play(folder, scene)


EVENTS = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\na\r\ndata: {}\n\n\r\n"
)


@pytest.mark.parametrize("how", ["its node is lost", "it is gone", "it has crashed"])
def test_upstreams__end_a_stream_of_events_with_an_error(folder: Path, how: str) -> None:
    async def scene(upstreams: Upstreams, agents: Agents) -> None:
        agents.answer = EVENTS
        await upstreams.apply({0: target(5)}, "")
        reader, _ = await connect(folder, "s0")
        await reader.readexactly(len(EVENTS))
        if how == "its node is lost":
            agents.nodes[0].lose()
        elif how == "it is gone":
            await upstreams.apply({}, "")
        else:
            agents.nodes[0].end()
        rest = await reader.read()
        assert b"event: error\ndata: " in rest
        assert b"replica 5 of model was lost" in rest
        assert not rest.endswith(b"0\r\n\r\n"), "the proxy must see that the answer is not whole"

    play(folder, scene)


def test_upstreams__take_another_replica_when_a_silent_one_leaves(folder: Path) -> None:
    async def scene(upstreams: Upstreams, agents: Agents) -> None:
        agents.silent = {5}
        await upstreams.apply({0: target(5), 1: target(6)}, "")
        reader, _ = await connect(folder, "s0")
        while not upstreams._openings:
            await asyncio.sleep(0)
        await upstreams.apply({0: target(5, in_rotation=False), 1: target(6)}, "")
        assert await reader.readexactly(2) == b"6:"

    play(folder, scene)
