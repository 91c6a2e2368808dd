"""The WebSocket of nodes on a real server and real sockets, with the `websockets` library as the other side."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any

import pytest
import websockets
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocket, WebSocketDisconnect
from structlog.testing import capture_logs
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import Frame, Opcode

from perdure.controller.api.server import node_websocket
from perdure.controller.api.server.http import Server
from perdure.controller.runtime.request_priority import RequestPriorityGate
from support.helpers.timing import scaled

UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: here\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


class Echo:
    """A server's application that sends every message back."""

    def __init__(self) -> None:
        self.address = ""
        self.received: list[dict[str, Any]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        connection = WebSocket(scope, receive, send)
        if scope["path"] == "/rejected":
            await connection.close()
            return
        await connection.accept()
        with contextlib.suppress(WebSocketDisconnect):
            while await self._handle(connection, dict(await connection.receive())):
                pass

    async def _handle(self, connection: WebSocket, message: dict[str, Any]) -> bool:
        self.received.append(message)
        if message.get("text", "").startswith("close: "):
            await connection.close(4000, message["text"].removeprefix("close: "))
        elif message.get("text") is not None:
            await connection.send_text(message["text"])
        elif message.get("bytes") is not None:
            await connection.send_bytes(message["bytes"])
        return bool(message["type"] == "websocket.receive")


def served(test: Callable[[Echo], Awaitable[None]]) -> Callable[[], None]:
    """Run `test` while the application is served."""

    @functools.wraps(test)
    def run() -> None:
        asyncio.run(_serve(test))

    del run.__wrapped__  # type: ignore[attr-defined]  # pytest would take its parameters for fixtures
    return run


async def _serve(test: Callable[[Echo], Awaitable[None]]) -> None:
    echo = Echo()
    done: Future[None] = Future()
    done.set_result(None)
    server = Server(echo, None, RequestPriorityGate(), on_startup=lambda: done)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        echo.address = f"127.0.0.1:{listening.getsockname()[1]}"
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        try:
            await asyncio.wait_for(test(echo), scaled(20))
        finally:
            server.should_exit = True
            await serving


def connect(address: str, path: str = "/") -> Any:
    return websockets.connect(f"ws://{address}{path}", max_size=None, compression=None)


async def closed(client: ClientConnection) -> tuple[int, str]:
    """The close frame of the server."""
    with pytest.raises(ConnectionClosed) as error:
        await client.recv()
    assert error.value.rcvd is not None
    return error.value.rcvd.code, error.value.rcvd.reason


async def answer(address: str, request: bytes) -> bytes:
    """Everything that the server sends in response to these bytes."""
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request)
    response = await reader.read()
    writer.close()
    return response


@served
async def test_messages__are_delivered_in_both_directions(echo: Echo) -> None:
    async with connect(echo.address) as client:
        for message in ("ü", "", b"", b"\x00" * 126, b"x" * 70_000, "y" * node_websocket.MAX_MESSAGE_BYTES):
            await client.send(message)
            assert await client.recv() == message


@served
async def test_fragments__are_one_message(echo: Echo) -> None:
    async with connect(echo.address) as client:
        await client.send(["a", "", "bc"])
        assert await client.recv() == "abc"
    assert echo.received[0]["text"] == "abc"


@served
async def test_ping__is_answered_between_fragments(echo: Echo) -> None:
    async with connect(echo.address) as client:

        async def parts() -> Any:
            yield b"1"
            await (await client.ping())
            yield b"2"

        await client.send(parts())
        assert await client.recv() == b"12"


@served
async def test_many_messages__are_read_although_reading_pauses(echo: Echo) -> None:
    async with connect(echo.address) as client:
        texts = [str(number) for number in range(20 * node_websocket._READ_HIGH_WATER)]
        await asyncio.gather(*map(client.send, texts))
        assert [await client.recv() for _ in texts] == texts


@served
async def test_message__too_large_ends_the_connection(echo: Echo) -> None:
    half = b"x" * (node_websocket.MAX_MESSAGE_BYTES // 2 + 1)
    for message in (2 * half, [half, half]):
        async with connect(echo.address) as client:
            await client.send(message)
            assert (await closed(client))[0] == 1009


@served
async def test_text__that_is_not_utf_8_ends_the_connection(echo: Echo) -> None:
    async with connect(echo.address) as client:
        await client.send(b"\xff", text=True)
        assert (await closed(client))[0] == 1007
    assert echo.received[-1] == {"type": "websocket.disconnect", "code": 1007, "reason": echo.received[-1]["reason"]}


@served
async def test_text__is_delivered_before_a_violation_ends_the_connection(echo: Echo) -> None:
    frames = sent(Opcode.TEXT, b"first") + sent(Opcode.TEXT, b"\xff") + sent(Opcode.TEXT, b"no")
    with capture_logs() as logged:  # the application's answer to the first is not an error of its own
        assert (await answer_frames(echo.address, frames))[2:4] == (1007).to_bytes(2, "big")
    assert [message.get("text") for message in echo.received] == ["first"]
    assert logged == []


@served
async def test_frames__may_arrive_in_any_pieces(echo: Echo) -> None:
    host, port = echo.address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(UPGRADE)
    await reader.readuntil(b"\r\n\r\n")
    for byte in sent(Opcode.TEXT, b"1" * 126) + sent(Opcode.PING, b"2") + sent(Opcode.BINARY, b"3"):
        writer.write(bytes((byte,)))
        await asyncio.sleep(0)
    expected = b"\x81\x7e\x00\x7e" + b"1" * 126 + b"\x8a\x012" + b"\x82\x013"
    assert await reader.readexactly(len(expected)) == expected
    writer.close()


def sent(opcode: Opcode, payload: bytes, *, final: bool = True) -> bytes:
    """A frame of a client."""
    return Frame(opcode, payload, fin=final).serialize(mask=True)


MASK = b"\x01\x02\x03\x04"
TOO_LARGE = (node_websocket.MAX_MESSAGE_BYTES + 1).to_bytes(8, "big")
VIOLATIONS = {
    "not masked": (Frame(Opcode.TEXT, b"hi").serialize(mask=False), 1002),
    "a reserved bit": (b"\xc1\x80" + MASK, 1002),  # compression was not negotiated
    "an unknown opcode": (b"\x83\x80" + MASK, 1002),
    "a fragmented ping": (b"\x09\x80" + MASK, 1002),
    "a long ping": (b"\x89\xfe\x00\x7e" + MASK + b"x" * 126, 1002),
    "too large, without its payload": (b"\x82\xff" + TOO_LARGE, 1009),
    "of the greatest size": (b"\x82\xff" + b"\xff" * 8, 1009),
    "a continuation that makes the message too large": (
        sent(Opcode.TEXT, b"x", final=False) + b"\x80\xff" + (node_websocket.MAX_MESSAGE_BYTES).to_bytes(8, "big"),
        1009,
    ),
    "half a close code": (sent(Opcode.CLOSE, b"\x03"), 1002),
    "a close reason that is not UTF-8": (sent(Opcode.CLOSE, b"\x03\xe8\xff"), 1007),
    **{
        f"close code {code}": (sent(Opcode.CLOSE, code.to_bytes(2, "big")), 1002)
        for code in (0, 999, 1004, 1005, 1006, 1015, 1016, 2999, 5000)
    },
}


@pytest.mark.parametrize(("frames", "code"), VIOLATIONS.values(), ids=list(VIOLATIONS))
def test_violation__ends_the_connection_with_its_code(frames: bytes, code: int) -> None:
    async def test(echo: Echo) -> None:
        response = await answer_frames(echo.address, frames)
        assert (response[0], response[2:4]) == (0x88, code.to_bytes(2, "big"))
        assert [message.get("code") for message in echo.received] == [code]

    asyncio.run(_serve(test))


@served
async def test_continuation__without_a_message_ends_the_connection(echo: Echo) -> None:
    response = await answer_frames(echo.address, b"\x80\x81\0\0\0\0x")
    assert response[2:4] == (1002).to_bytes(2, "big")


@served
async def test_message__within_a_message_ends_the_connection(echo: Echo) -> None:
    response = await answer_frames(echo.address, b"\x01\x81\0\0\0\0x\x81\x81\0\0\0\0y")
    assert response[2:4] == (1002).to_bytes(2, "big")


async def answer_frames(address: str, frames: bytes) -> bytes:
    """What the server sends after its handshake in response to these frames, until it closes the connection."""
    host, port = address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(UPGRADE)
    await reader.readuntil(b"\r\n\r\n")
    writer.write(frames)
    response = await reader.read()
    writer.close()
    return response


@served
async def test_close__of_the_application_reaches_the_client(echo: Echo) -> None:
    async with connect(echo.address) as client:
        await client.send("close: asked to")
        assert await closed(client) == (4000, "asked to")


@served
async def test_close__long_reason_is_cut_between_characters(echo: Echo) -> None:
    async with connect(echo.address) as client:
        await client.send("close: " + "é" * 100)
        assert await closed(client) == (4000, "é" * 61)


@served
async def test_close__without_a_code_reaches_the_application(echo: Echo) -> None:
    assert await answer_frames(echo.address, sent(Opcode.CLOSE, b"")) == b"\x88\x00"
    assert echo.received == [{"type": "websocket.disconnect", "code": 1005, "reason": ""}]


@served
async def test_close__of_the_client_reaches_the_application(echo: Echo) -> None:
    async with connect(echo.address) as client:
        await client.close(4001, "bye")
    while not echo.received:
        await asyncio.sleep(0)
    assert echo.received == [{"type": "websocket.disconnect", "code": 4001, "reason": "bye"}]


@served
async def test_lost_connection__reaches_the_application(echo: Echo) -> None:
    async with connect(echo.address) as client:
        client.transport.abort()
        while not echo.received:
            await asyncio.sleep(0)
    assert echo.received[0]["code"] == 1006


@served
async def test_upgrade__is_rejected_by_the_application(echo: Echo) -> None:
    with pytest.raises(InvalidStatus) as error:
        await connect(echo.address, "/rejected").__aenter__()
    assert error.value.response.status_code == 403


@served
async def test_handshake__that_is_invalid_is_rejected(echo: Echo) -> None:
    for old, new in (
        (b"Version: 13", b"Version: 12"),
        (b"ZQ==\r\n", b"ZQ==\r\nSec-WebSocket-Version: 13\r\n"),
        (b"dGhl", b""),
        (b"ZQ==", b"ZQ"),
        (b"dGhlIHNhbXBsZSBub25jZQ==", b""),
        (b"dGhlIHNhbXBsZSBub25jZQ==", b"AAAA"),
        (b"dGhl", b"\xff\xfe\xff\xfe"),
        (b"GET", b"POST"),
        (b"HTTP/1.1", b"HTTP/1.0"),
    ):
        assert old in UPGRADE
        assert (await answer(echo.address, UPGRADE.replace(old, new))).startswith(b"HTTP/1.1 400 Bad Request\r\n"), new
    assert echo.received == []


def test_shutdown__closes_with_restarting() -> None:
    async def test(echo: Echo) -> None:
        client = await connect(echo.address)
        await client.send("hello")
        await client.recv()
        clients.append(client)

    async def run() -> None:
        await _serve(test)
        assert (await closed(clients[0]))[0] == 1012

    clients: list[ClientConnection] = []
    asyncio.run(run())
