"""What the daemon bears from whoever can reach its port: slow callers, many callers, long messages.

Nobody has shown a token yet when a connection is made, so each may cost little, and not for long.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import resource
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

HEAD_S = 15.0
MAX_MESSAGE_BYTES = 1024 * 1024
_MOST_HEAD_BYTES = 64 * 1024
_MOST_UNHEARD = 32
LINE = "holdfast.line"
_MOST_FILES = 65_536


class HeadInTime(HttpToolsProtocol):
    """Hangs up on who has not sent the whole head of a request in `HEAD_S`: the first since connecting, each other
    since the answer before it. What is left of a body that nobody read counts with the head that follows.

    A head may have 64 KiB.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_bytes: int | None = 0  # None within a request whose head has come
        self._head_due = self.loop.call_later(HEAD_S, self._hang_up)

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_due.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._head_bytes is not None:
            self._head_bytes += len(data)
        super().data_received(data)
        if self._head_bytes is not None and self._head_bytes > _MOST_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The head of the request is too long.")

    def on_headers_complete(self) -> None:
        self._head_bytes = None
        super().on_headers_complete()

    def handle_websocket_upgrade(self) -> None:
        self._head_due.cancel()
        super().handle_websocket_upgrade()

    def on_response_complete(self) -> None:
        self._head_bytes = 0
        self._head_due.cancel()
        self._head_due = self.loop.call_later(HEAD_S, self._hang_up)
        super().on_response_complete()

    def _hang_up(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()


class AgentLine(WebSocketsSansIOProtocol):
    """A WebSocket that reads on while some messages wait to be taken: stopping and starting again costs more than most
    of what nodes say."""

    heard_at = 0.0
    """When anything came, by the loop's clock; a ping is not told to the application."""

    def data_received(self, data: bytes) -> None:
        self.heard_at = self.loop.time()
        super().data_received(data)

    def handle_connect(self, event: Any) -> None:
        super().handle_connect(event)
        if not self.close_sent:
            extensions: dict[str, Any] = {**(self.scope["extensions"] or {}), LINE: self}
            self.scope["extensions"] = extensions

    def send_receive_event_to_app(self) -> None:
        paused, self.read_paused = self.read_paused, True  # what it does is then left to us
        super().send_receive_event_to_app()
        self.read_paused = paused
        if not paused and self.queue.qsize() > _MOST_UNHEARD:
            self.read_paused = True
            self.transport.pause_reading()

    def forget(self, scope: Any) -> None:
        """Keep no more than `scope` of the request."""
        self.scope = scope
        del self.request, self.response


def allow_many() -> None:
    """Many open files, if the system lets this process have them: each node holds one, and so does each caller."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def collect_seldom() -> None:
    """Look for garbage that is held by itself less often: with ten thousand connections each look costs a second."""
    gc.set_threshold(10_000, 20, 50)
