"""What the daemon bears from whoever can reach its port: slow callers, many callers, long messages.

Nobody has shown a token yet when a connection is made, so each may cost little, and not for long.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import gc
import resource
import sys
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol

from perdure.controller.smallqueue import SmallQueue

HEAD_S = 15.0
MAX_MESSAGE_BYTES = 1024 * 1024
_MOST_HEAD_BYTES = 64 * 1024
_MOST_UNHEARD = 32
LINE = "perdure.line"
BACKLOG = 16_384  # callers that wait to be heard; the system may allow fewer
OPENS_AFTER_S = 5.0
_MOST_AT_ONCE = 16
_MOST_FILES = 65_536
_TURN_S = 0.0005


class Turnstile:
    """Lets nodes in a few at a time: when ten thousand call at once, whoever else asks is answered in between.

    It is shut until `open`, from any thread, and no longer than `OPENS_AFTER_S` since the first of them came.
    """

    def __init__(self) -> None:
        self._waiting: collections.deque[Callable[[], None]] = collections.deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_open = self._is_turning = False

    def open(self) -> None:
        self._is_open = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(self._begin)

    def enter(self, come_in: Callable[[], None]) -> None:
        """Have `come_in` called in its turn, on the event loop that this is called on."""
        self._waiting.append(come_in)
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            if not self._is_open:
                self._loop.call_later(OPENS_AFTER_S, self.open)
        if self._is_open:
            self._begin()

    def _begin(self) -> None:
        if not self._is_turning and self._loop is not None:
            self._is_turning = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._is_turning = False
        try:
            for _ in range(min(_MOST_AT_ONCE, len(self._waiting))):
                self._waiting.popleft()()
        finally:
            if self._waiting:
                self._begin()


class HeadInTime(HttpToolsProtocol):
    """Hangs up on who has not sent the whole head of a request in `HEAD_S`: the first since connecting, each other
    since the answer before it. What is left of a body that nobody read counts with the head that follows.

    A head may have 64 KiB. Who wants to stay (a WebSocket) comes in by the turnstile, and says nothing before.
    """

    def __init__(self, *given: Any, turnstile: Turnstile, **named: Any) -> None:
        super().__init__(*given, **named)
        self._turnstile = turnstile
        self._is_waiting = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_bytes: int | None = 0  # None within a request whose head has come
        self._head_due = self.loop.call_later(HEAD_S, self._hang_up)

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
        if self._head_bytes is not None and self._head_bytes > _MOST_HEAD_BYTES and not self.transport.is_closing():
            self.send_400_response("The head of the request is too long.")

    def on_headers_complete(self) -> None:
        self._head_bytes = None
        super().on_headers_complete()

    def handle_websocket_upgrade(self) -> None:
        self._head_due.cancel()
        self._is_waiting = True
        self._turnstile.enter(self._come_in)

    def _come_in(self) -> None:
        if not self.transport.is_closing():
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
    of what nodes say. There are thousands, and they last for weeks, so each keeps little."""

    heard_at = 0.0
    """When anything came, by the loop's clock; a ping is not told to the application."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.queue = SmallQueue()  # type: ignore[assignment]  # with all of asyncio's that is used here

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
        """Keep no more than `scope` of the request. Others refer to it still, from frames that last as long as this."""
        self.scope.clear()  # type: ignore[attr-defined]
        self.scope = scope
        self.request.headers.clear()
        self.response.headers.clear()
        del self.request, self.response


def expect_many() -> None:
    """Ready this process for thousands of callers, each of which holds an open file.

    Garbage that is held by itself is looked for less often: with ten thousand connections each look costs a second.
    Among what is not old it is looked for in small portions, for nobody is heard meanwhile; and never among what was
    imported.
    Threads wait less for one that computes: the event loop may have to at each thing that it hears.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    gc.freeze()
    gc.set_threshold(10_000, 5, 200)
    sys.setswitchinterval(_TURN_S)
