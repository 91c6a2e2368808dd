"""Limits for anyone who can reach the port: slow clients, many clients, long messages.

A new connection has not shown a token yet. So each one may cost only little, and only for a short time.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from perdure.controller.runtime.compact_queue import CompactQueue

HEADER_TIMEOUT_S = 15.0
MAX_MESSAGE_BYTES = 1024 * 1024
_MAX_HEAD_BYTES = 64 * 1024
_READ_HIGH_WATER = 32
PROTOCOL_EXTENSION = "perdure.protocol"
BACKLOG = 16_384  # connections that wait to be accepted; the system may allow fewer
MAX_CLOSED_S = 5.0
_BATCH_SIZE = 16


class ConnectionAdmission:
    """Accepts node connections in small batches, so that other requests are served while ten thousand nodes reconnect.

    It accepts none until `open` is called, or until `MAX_CLOSED_S` have passed since the first connection.
    """

    def __init__(self) -> None:
        self._waiting: collections.deque[Callable[[], None]] = collections.deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_open = self._is_scheduled = False

    def open(self) -> None:
        """Start to accept connections. From any thread."""
        self._is_open = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._schedule)

    def admit(self, accept: Callable[[], None]) -> None:
        """Call `accept` when it is this connection's turn. On the event loop, which also calls `accept`."""
        self._waiting.append(accept)
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            if not self._is_open:
                self._loop.call_later(MAX_CLOSED_S, self.open)
        if self._is_open:
            self._schedule()

    def _schedule(self) -> None:
        if not self._is_scheduled and self._loop is not None:
            self._is_scheduled = True
            self._loop.call_soon(self._admit_batch)

    def _admit_batch(self) -> None:
        self._is_scheduled = False
        try:
            for _ in range(min(_BATCH_SIZE, len(self._waiting))):
                self._waiting.popleft()()
        finally:
            if self._waiting:
                self._schedule()


class HeaderTimeoutProtocol(HttpToolsProtocol):
    """Closes connections that do not send the complete head of a request within `HEADER_TIMEOUT_S`.

    The time counts from the start of the connection, then from each response. The rest of a body that was not read
    counts as part of the next head. A head may have 64 KiB. A WebSocket waits for `admission`, and must not send
    anything before that.
    """

    def __init__(self, *args: Any, admission: ConnectionAdmission, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._admission = admission
        self._is_waiting = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_bytes: int | None = 0  # None once the head of the current request is complete
        self._head_due = self.loop.call_later(HEADER_TIMEOUT_S, self._hang_up)

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_due.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._is_waiting:
            self.transport.abort()
            return
        if self._head_bytes is not None:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes is not None and self._head_bytes > _MAX_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The head of the request is too long.")

    def on_headers_complete(self) -> None:
        self._head_bytes = None
        super().on_headers_complete()

    def handle_websocket_upgrade(self) -> None:
        self._head_due.cancel()
        self._is_waiting = True
        self._admission.admit(self._accept)

    def _accept(self) -> None:
        if not self.transport.is_closing():
            super().handle_websocket_upgrade()

    def on_response_complete(self) -> None:
        self._head_bytes = 0
        self._head_due.cancel()
        self._head_due = self.loop.call_later(HEADER_TIMEOUT_S, self._hang_up)
        super().on_response_complete()

    def _hang_up(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()


class NodeWebSocketProtocol(WebSocketsSansIOProtocol):
    """A WebSocket that costs little memory and time: there are thousands, and they last for weeks.

    It keeps reading while a few messages are queued, because pausing and resuming costs more than most messages.
    """

    #: When data arrived last, by the event loop's clock. Pings count; the application does not see them.
    last_received_at = 0.0

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.queue = CompactQueue()  # type: ignore[assignment]  # it has all methods of asyncio.Queue that are used here

    def data_received(self, data: bytes) -> None:
        self.last_received_at = self.loop.time()
        super().data_received(data)

    def handle_connect(self, event: Any) -> None:
        super().handle_connect(event)
        if not self.close_sent:
            extensions: dict[str, Any] = {**(self.scope["extensions"] or {}), PROTOCOL_EXTENSION: self}
            self.scope["extensions"] = extensions

    def send_receive_event_to_app(self) -> None:
        paused, self.read_paused = self.read_paused, True  # so that the base class does not pause reading
        super().send_receive_event_to_app()
        self.read_paused = paused
        if not paused and self.queue.qsize() > _READ_HIGH_WATER:
            self.read_paused = True
            self.transport.pause_reading()

    async def send(self, message: Any) -> None:
        await super().send(message)
        if self.close_sent:  # the base class logs an error for each call that is rejected with a response of its own
            self.handshake_complete = True

    def release_handshake(self, scope: Any) -> None:
        """Replace the request's scope by `scope` and free the old one, to which stack frames refer while it is open."""
        self.scope.clear()  # type: ignore[attr-defined]
        self.scope = scope
        self.request.headers.clear()
        self.response.headers.clear()
        del self.request, self.response
