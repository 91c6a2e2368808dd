"""The server's end of a node's WebSocket, with the interface of ASGI.

There are thousands, they last for weeks, and all of them reconnect at once when a controller restarts. A general server
builds its own request from the one that the HTTP parser has read, and parses that again; this one takes the request
as it is, and leaves the frames to the `websockets` library. It supports no extensions, no subprotocols and no fragments
from this side, which nodes do not use.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import http
from collections.abc import Callable
from typing import Any, Protocol

import structlog
from starlette.types import ASGIApp
from starlette.websockets import WebSocketDisconnect
from websockets import protocol as websocket
from websockets.frames import CloseCode, Frame, Opcode
from websockets.utils import accept_key

from perdure.controller.runtime.compact_queue import CompactQueue

log = structlog.get_logger(__name__)

MAX_MESSAGE_BYTES = 1024 * 1024
PROTOCOL_EXTENSION = "perdure.protocol"
_READ_HIGH_WATER = 32
_CLOSE_TIMEOUT_S = 10.0  # for the answer to a close frame
_MAX_REASON_BYTES = 123  # a control frame has room for 125, and the code takes 2
_SUPPORTED_VERSION = b"13"
_KEY_BYTES = 16


class ConnectionRegistry(Protocol):
    """The state of uvicorn's server: what it closes, and what it waits for, when it shuts down."""

    connections: set[Any]
    tasks: set[asyncio.Task[None]]


class NodeWebSocketProtocol(asyncio.Protocol):
    """A WebSocket that costs little memory and time.

    It keeps reading while a few messages are queued, because pausing and resuming costs more than most messages.
    """

    __slots__ = (
        "_accept_key",
        "_app",
        "_close_timer",
        "_fragments",
        "_is_closed",
        "_is_lost",
        "_is_reading",
        "_is_text",
        "_loop",
        "_protocol",
        "_queue",
        "_registry",
        "_response",
        "_transport",
        "_writable",
        "last_received_at",
        "max_message_bytes",
        "on_lost",
        "scope",
    )

    def __init__(self, app: ASGIApp, registry: ConnectionRegistry, transport: asyncio.Transport, scope: Any) -> None:
        """`scope`: of the request that asked for the upgrade, as a WebSocket's. `start` must follow."""
        #: When data arrived last, by the event loop's clock. Pings count; the application does not see them.
        self.last_received_at = 0.0
        #: Called once, when the connection is lost.
        self.on_lost: Callable[[], object] | None = None
        #: Of the messages from the other side. Set it before the connection is accepted.
        self.max_message_bytes = MAX_MESSAGE_BYTES
        self.scope = scope
        self._app = app
        self._registry = registry
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._queue: CompactQueue[dict[str, Any]] = CompactQueue()
        self._protocol: websocket.Protocol | None = None  # from the acceptance until the connection is lost
        self._fragments: bytearray | None = None  # of a message whose last fragment has not arrived
        self._is_text = False  # the message that arrived last
        self._accept_key = b""
        self._response: dict[str, Any] | None = None  # the start of a response that rejects the upgrade
        self._writable: asyncio.Future[None] | None = None  # None: it is writable now
        self._close_timer: asyncio.TimerHandle | None = None
        self._is_closed = False  # this side has sent a close frame or a response, and sends nothing more
        self._is_lost = False
        self._is_reading = True

    def start(self) -> None:
        """Take over the transport, and call the application if the request is a valid handshake."""
        self._transport.set_protocol(self)
        self._registry.connections.add(self)
        key = _key_of(self.scope)
        if key is None:
            self._respond(400, [], b"invalid WebSocket handshake\n")
            return
        self._accept_key = key
        self.scope["extensions"] = {"websocket.http.response": {}, PROTOCOL_EXTENSION: self}
        self._queue.put_nowait({"type": "websocket.connect"})
        task = self._loop.create_task(self._run())
        self._registry.tasks.add(task)
        task.add_done_callback(self._registry.tasks.discard)

    async def _run(self) -> None:
        try:
            await self._app(self.scope, self.receive, self.send)
        except (OSError, WebSocketDisconnect):  # the node is gone
            pass
        except Exception:
            log.exception("websocket.failed")
        if self._is_lost:
            return
        if self._protocol is None and not self._is_closed:
            self._respond(500, [], b"")
        elif self._close_timer is None:
            self._transport.close()

    def release_handshake(self, scope: Any) -> None:
        """Replace the request's scope by `scope` and free the old one, to which stack frames refer while it is open."""
        self.scope.clear()
        self.scope = scope

    # --- the application's side -------------------------------------------------------------------------

    async def receive(self) -> dict[str, Any]:
        message = await self._queue.get()
        if not self._is_reading and self._queue.empty():
            self._resume_reading()
        return message

    async def send(self, message: Any) -> None:
        """Raises OSError if the connection is lost or closed, from whichever side."""
        if self._writable is not None:
            await asyncio.shield(self._writable)
        if self._is_lost or self._is_closed:
            raise OSError("the connection is closed")
        kind = message["type"]
        match kind:
            case "websocket.send" if self._protocol is not None:
                text = message.get("text")
                if text is not None:
                    self._protocol.send_text(text.encode())
                else:
                    self._protocol.send_binary(message["bytes"])
                self._write(self._protocol)
            case "websocket.close" if self._protocol is not None:
                self._close(self._protocol, message.get("code", CloseCode.NORMAL_CLOSURE), message.get("reason") or "")
            case "websocket.accept" if self._protocol is None:
                self._protocol = websocket.Protocol(websocket.Side.SERVER, max_size=self.max_message_bytes)
                self._transport.write(
                    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                    b"Sec-WebSocket-Accept: " + self._accept_key + b"\r\n\r\n"
                )
            case "websocket.close":
                self._respond(403, [], b"")
            case "websocket.http.response.start":
                self._response = message
            case "websocket.http.response.body" if self._response is not None:
                self._respond(self._response["status"], self._response["headers"], message.get("body", b""))
            case _:
                raise RuntimeError(f"{kind} is not possible now")

    def _respond(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        """Reject the upgrade with a response."""
        length = (
            [] if any(name == b"content-length" for name, _ in headers) else [(b"content-length", b"%d" % len(body))]
        )
        lines = [name + b": " + value for name, value in [*headers, *length, (b"connection", b"close")]]
        start = f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}".encode()
        self._is_closed = True
        self._queue.put_nowait(_disconnect(CloseCode.ABNORMAL_CLOSURE))
        self._transport.write(b"\r\n".join([start, *lines, b"", body]))
        self._transport.close()

    def _close(self, protocol: websocket.Protocol, code: int, reason: str) -> None:
        """Send a close frame, and wait a while for the node's."""
        protocol.send_close(code, reason.encode()[:_MAX_REASON_BYTES].decode(errors="ignore"))
        self._write(protocol)
        if not self._is_reading:
            self._resume_reading()
        self._close_timer = self._loop.call_later(_CLOSE_TIMEOUT_S, self._transport.close)

    def _write(self, protocol: websocket.Protocol) -> None:
        """Send what `protocol` has rendered. If it has ended the connection, say so to the application."""
        for data in protocol.data_to_send():
            if data == websocket.SEND_EOF:
                self._transport.close()
            else:
                self._transport.write(data)
        if protocol.close_sent is not None and not self._is_closed:
            self._is_closed = True
            self._queue.put_nowait(_disconnect(protocol.close_sent.code, protocol.close_sent.reason))

    # --- the transport's side ---------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        self.last_received_at = self._loop.time()
        protocol = self._protocol
        if protocol is None:  # a client must wait for the response to its handshake
            self._transport.abort()
            return
        protocol.receive_data(data)
        try:
            for frame in protocol.events_received():
                if isinstance(frame, Frame) and frame.opcode < Opcode.CLOSE and not self._is_closed:
                    self._on_data(frame)
        except UnicodeDecodeError as error:
            protocol.fail(CloseCode.INVALID_DATA, f"not UTF-8: {error.reason}")
        self._write(protocol)

    def _on_data(self, frame: Frame) -> None:
        """Raises UnicodeDecodeError for a text that is not UTF-8."""
        payload = bytes(frame.data)
        if frame.opcode is not Opcode.CONT:
            self._is_text = frame.opcode is Opcode.TEXT
        if self._fragments is not None or not frame.fin:
            if self._fragments is None:
                self._fragments = bytearray()
            self._fragments += payload
            if not frame.fin:
                return
            payload, self._fragments = bytes(self._fragments), None
        content = {"text": payload.decode()} if self._is_text else {"bytes": payload}
        self._queue.put_nowait({"type": "websocket.receive", **content})
        if self._is_reading and self._queue.qsize() > _READ_HIGH_WATER:
            self._is_reading = False
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        self._is_reading = True
        self._transport.resume_reading()

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002
        self._is_lost = True
        self._protocol = None
        self._registry.connections.discard(self)
        self._queue.put_nowait(_disconnect(CloseCode.ABNORMAL_CLOSURE))
        self.resume_writing()
        if self._close_timer is not None:
            self._close_timer.cancel()
        if self.on_lost is not None:
            self.on_lost()

    def pause_writing(self) -> None:
        self._writable = self._loop.create_future()

    def resume_writing(self) -> None:
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)
        self._writable = None

    def shutdown(self) -> None:
        """The server stops."""
        if self._protocol is not None:
            self._protocol.fail(CloseCode.SERVICE_RESTART)
            self._write(self._protocol)
        elif not self._is_closed:
            self._respond(500, [], b"")


def _key_of(scope: Any) -> bytes | None:
    """The value of Sec-WebSocket-Accept for the handshake in `scope`; None if the handshake is invalid."""
    values: dict[bytes, list[bytes]] = {}
    for name, value in scope["headers"]:
        values.setdefault(name, []).append(value)
    if (scope["method"], scope["http_version"]) != ("GET", "1.1"):
        return None
    keys = values.get(b"sec-websocket-key", [])
    if len(keys) != 1 or values.get(b"sec-websocket-version") != [_SUPPORTED_VERSION]:
        return None
    try:
        is_valid = len(base64.b64decode(keys[0], validate=True)) == _KEY_BYTES
    except binascii.Error:
        return None
    return accept_key(keys[0].decode("ascii")).encode("ascii") if is_valid else None


def _disconnect(code: int, reason: str = "") -> dict[str, Any]:
    return {"type": "websocket.disconnect", "code": code, "reason": reason}
