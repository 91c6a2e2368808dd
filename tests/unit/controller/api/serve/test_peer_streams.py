"""Streams to nodes that are connected to another controller, between two real servers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from starlette.datastructures import Headers
from starlette.types import Receive, Scope, Send
from structlog.testing import capture_logs
from websockets.asyncio.server import ServerConnection, serve

from perdure.controller.api.request_precheck import bearer
from perdure.controller.api.serve.peer_streams import VALID_S, Peer, PeerStreams, _parse_request
from perdure.controller.api.server.http import Server
from perdure.controller.api.server.sockets import StreamSocket
from perdure.controller.nodes.frames import InvalidFrame
from perdure.controller.runtime.clock import ManualClock, SystemClock
from perdure.controller.runtime.config.listen import Certificate, ListenConfig
from perdure.controller.runtime.request_priority import RequestPriorityGate
from perdure.controller.runtime.security.keyring import Keyring
from perdure.controller.runtime.security.tls import Tls, load_tls
from perdure.controller.store.records.agent_connections import Place
from perdure.controller.submit.errors import RequestRejected
from support.helpers.timing import scaled

PLACE: Place = ((7, 0, 1), 0)
KEYRING = Keyring(b"k" * 32, "token")


class Program:
    """A stream to a program that answers each piece with its name."""

    def __init__(self) -> None:
        self.messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

    async def send_bytes(self, data: bytes) -> None:
        self.messages.put_nowait({"type": "websocket.receive", "bytes": b"program:" + data})

    async def receive(self) -> dict[str, Any]:
        return await self.messages.get()

    def end(self) -> None:
        self.messages.put_nowait({"type": "websocket.receive", "text": json.dumps({"type": "exit", "code": 0})})


@dataclass
class Two:
    """Controller `a`, which calls, and `b`, which has the node. `holders`: where the database says the node is."""

    a: PeerStreams
    b: PeerStreams
    clock: ManualClock
    url: str = ""
    certificate: str = ""
    programs: list[Program] = field(default_factory=list)
    refuses: bool = False

    @property
    def peer(self) -> Peer:
        return Peer("b", self.url, self.certificate)


def never(*_: Any) -> Any:
    raise AssertionError("the node is not connected here")


def play(scene: Callable[[Two], Awaitable[None]], tls: Tls | None = None) -> None:
    asyncio.run(_play(scene, tls))


async def _play(scene: Callable[[Two], Awaitable[None]], tls: Tls | None) -> None:
    clock = ManualClock()
    two: Two

    @contextlib.asynccontextmanager
    async def local(place: Place, port: int, _gone: asyncio.Future[None]) -> AsyncIterator[Any]:
        assert (place, port) == (PLACE, 8080)
        if two.refuses:
            raise RequestRejected("the program does not listen", fix="start it")
        program = Program()
        two.programs.append(program)
        yield program

    ends = lambda text: json.loads(text)["type"] == "exit"  # noqa: E731
    common: dict[str, Any] = {"clock": clock, "keyring": KEYRING, "speed": 1.0, "ends_stream": ends}
    a = PeerStreams(None, owner="a", local=never, is_local=lambda _: False, **common)  # type: ignore[arg-type]
    b = PeerStreams(None, owner="b", local=local, is_local=lambda _: True, **common)  # type: ignore[arg-type]
    two = Two(a, b, clock, certificate=tls.certificate if tls else "")

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        token = bearer(Headers(scope=scope).get("authorization", ""))
        await b.serve(StreamSocket(scope, receive, send), token)

    done: Future[None] = Future()
    done.set_result(None)
    server = Server(app, tls, RequestPriorityGate(), on_startup=lambda: done)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        two.url = f"{'https' if tls else 'http'}://127.0.0.1:{listening.getsockname()[1]}"
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        try:
            async with asyncio.timeout(scaled(20)):
                await scene(two)
        finally:
            server.should_exit = True
            await serving


@contextlib.asynccontextmanager
async def opened(two: Two, peer: Peer | None = None) -> AsyncIterator[Any]:
    """A stream as controller `a` opens it."""
    loop = asyncio.get_running_loop()
    two.a._known[PLACE] = (loop.time() + 60, peer or two.peer)
    async with two.a.open(PLACE, 8080, loop.create_future()) as stream:
        yield stream


async def echoes(two: Two) -> None:
    async with opened(two) as stream:
        await stream.send_bytes(b"hello")
        assert await stream.receive() == {"type": "websocket.receive", "bytes": b"program:hello"}
        two.programs[0].end()
        assert json.loads((await stream.receive())["text"]) == {"type": "exit", "code": 0}
        assert (await stream.receive())["type"] == "websocket.disconnect"


def test_peer__passes_both_directions_and_the_end() -> None:
    play(echoes)


def certificate(folder: Path) -> Tls:
    made = Certificate(folder / "cert.pem", folder / "key.pem", generated=True)
    tls = load_tls(ListenConfig(made), host="127.0.0.1", clock=SystemClock())
    assert tls is not None
    return tls


def test_peer__is_known_by_its_certificate(tmp_path: Path) -> None:
    play(echoes, certificate(tmp_path))


def test_peer__with_another_certificate_gets_no_token(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()

    async def scene(two: Two) -> None:
        with pytest.raises(RequestRejected, match="cannot be reached"):
            async with opened(two, Peer("b", two.url, certificate(other).certificate)):
                pass
        assert not two.programs

    play(scene, certificate(tmp_path))


def test_peer__passes_on_why_there_is_no_stream() -> None:
    async def scene(two: Two) -> None:
        two.refuses = True
        with pytest.raises(RequestRejected, match="does not listen"):
            async with opened(two):
                pass

    play(scene)


def test_peer__that_is_gone_is_named() -> None:
    async def scene(two: Two) -> None:
        with pytest.raises(RequestRejected, match="cannot be reached") as rejected:
            async with opened(two, Peer("b", "http://127.0.0.1:9", "")):
                pass
        assert "several-controllers.md" in rejected.value.fix
        assert PLACE not in two.a._known, "the next request looks again"

    play(scene)


@pytest.mark.parametrize("forged", ["another key", "another controller", "too late", "nothing"])
def test_peer__refuses_whoever_is_none(forged: str) -> None:
    async def scene(two: Two) -> None:
        token = two.a._token_for(two.peer)
        if forged == "another key":
            stranger = PeerStreams(**{**vars(two.a), "keyring": Keyring(b"x" * 32, "token")})
            token = stranger._token_for(two.peer)
        elif forged == "another controller":
            token = two.a._token_for(Peer("c", two.url, ""))
        elif forged == "too late":
            two.clock.advance(VALID_S + 1)
        else:
            token = ""
        assert not two.b._is_peer(token)

    play(scene)


def test_caller__that_leaves_ends_the_stream() -> None:
    async def scene(two: Two) -> None:
        loop = asyncio.get_running_loop()
        two.a._known[PLACE] = (loop.time() + 60, two.peer)
        gone: asyncio.Future[None] = loop.create_future()
        gone.set_result(None)
        with pytest.raises(OSError, match="gone"):
            async with two.a.open(PLACE, 8080, gone):
                pass

    play(scene)


def test_caller__that_closes_the_stream_is_no_failure() -> None:
    """As the proxy of a service does with each connection that it needs no more."""

    async def scene(two: Two) -> None:
        loop = asyncio.get_running_loop()
        two.a._known[PLACE] = (loop.time() + 60, two.peer)
        async with two.a.open(PLACE, 8080, loop.create_future()) as stream:
            await stream.send_bytes(b"hello")
            await stream.receive()
        two.programs[0].end()

    with capture_logs() as lines:
        play(scene)
    assert [line for line in lines if line["log_level"] == "error"] == []


TOO_DEEP = "[" * 100_000


@pytest.mark.parametrize(
    "request_",
    [
        *("", "x", "1", "null", "[]", "{}", TOO_DEEP, '{"place": [7, 0, 1, 0]}', '{"place": [7, 0, 1], "port": 80}'),
        *(
            '{"place": [1e999, 0, 1, 0], "port": 80}',
            '{"place": [7, 0, 1, 0], "port": 1e999}',
            '{"place": 7, "port": 80}',
        ),
    ],
)
def test_request__that_is_none_is_refused(request_: str) -> None:
    with pytest.raises(InvalidFrame):
        _parse_request(request_)


@contextlib.asynccontextmanager
async def answering(answer: str | bytes, hold: asyncio.Event | None = None) -> AsyncIterator[tuple[Peer, set[Any]]]:
    """A peer that sends this answer, once `hold` is set, and its open connections."""
    links: set[Any] = set()

    async def handle(link: ServerConnection) -> None:
        links.add(link)
        try:
            await link.recv()
            if hold is not None:
                await hold.wait()
            await link.send(answer)
            await link.wait_closed()
        finally:
            links.discard(link)

    async with serve(handle, "127.0.0.1", 0) as server:
        yield Peer("b", f"http://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}", ""), links


@pytest.mark.parametrize(
    "answer", ["", "1", "[]", "{}", TOO_DEEP, '{"type": "error"}', b"\xff\xfe\xfd", '{"type": "error", "fix": 1}']
)
def test_peer__that_sends_no_answer_cannot_be_reached(answer: str | bytes) -> None:
    async def scene(two: Two) -> None:
        async with answering(answer) as (peer, _):
            with pytest.raises(RequestRejected, match="cannot be reached"):
                async with opened(two, peer):
                    pass

    play(scene)


def test_caller__that_is_cancelled_leaves_no_connection() -> None:
    async def scene(two: Two) -> None:
        hold = asyncio.Event()

        async def call() -> None:
            async with opened(two, peer):
                await asyncio.Event().wait()

        async with answering('{"type": "opened"}', hold) as (peer, links):
            calls = [asyncio.create_task(call()) for _ in range(5)]
            while len(links) < len(calls):
                await asyncio.sleep(0.01)
            for one in calls:
                one.cancel()
            await asyncio.wait(calls)
            hold.set()
            while links:
                await asyncio.sleep(0.01)

    play(scene)


def test_connection__that_opens_as_its_caller_is_cancelled_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene(two: Two) -> None:
        async with answering('{"type": "opened"}') as (peer, links):
            open_at = PeerStreams._open_at

            async def open_in_spite_of_all(*args: Any) -> Any:
                opening = asyncio.ensure_future(open_at(*args))
                try:
                    await asyncio.Event().wait()
                except asyncio.CancelledError:
                    return await opening

            monkeypatch.setattr(PeerStreams, "_open_at", open_in_spite_of_all)
            gone = asyncio.get_running_loop().create_future()
            call = asyncio.create_task(two.a._call(peer, PLACE, 8080, gone))
            while not links:
                await asyncio.sleep(0.01)
            call.cancel()
            await asyncio.wait([call])
            assert call.cancelled()
            while links:
                await asyncio.sleep(0.01)

    play(scene)
