"""Limits for anyone who can reach the port: slow clients, many clients, long messages.

A new connection has not shown a token yet. So each one may cost only little, and only for a short time.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import urllib.parse
from collections.abc import Callable
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from perdure.controller.api.server.node_websocket import NodeWebSocketProtocol

HEADER_TIMEOUT_S = 15.0
_MAX_HEAD_BYTES = 64 * 1024
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
        if self.transport.is_closing():
            return
        url = httptools.parse_url(self.url)
        scope = {
            **self.scope,
            "type": "websocket",
            "scheme": "wss" if self.scheme == "https" else "ws",
            "path": self.root_path + urllib.parse.unquote(url.path.decode("ascii")),
            "raw_path": self.root_path.encode("ascii") + url.path,
            "query_string": url.query or b"",
            "subprotocols": [],
        }
        self.connections.discard(self)
        self.parser = None  # type: ignore[assignment]  # it refers to this object, and would keep it in memory
        NodeWebSocketProtocol(self.app, self.server_state, self.transport, scope).start()

    def on_response_complete(self) -> None:
        self._head_bytes = 0
        self._head_due.cancel()
        self._head_due = self.loop.call_later(HEADER_TIMEOUT_S, self._hang_up)
        super().on_response_complete()

    def _hang_up(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()
