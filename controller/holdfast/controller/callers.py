"""What the daemon bears from whoever can reach its port: slow callers, many callers, long messages.

Nobody has shown a token yet when a connection is made, so each may cost little, and not for long.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_S = 15.0
MAX_MESSAGE_BYTES = 1024 * 1024
_MOST_FILES = 65_536


class HeadInTime(H11Protocol):
    """Hangs up on who has not sent the whole head of a request in `HEAD_S`: the first since connecting, each other
    since the answer before it. What is left of a body that nobody read counts with the head that follows."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._head_due = self.loop.call_later(HEAD_S, self._hang_up)

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_due.cancel()
        super().connection_lost(exc)

    def handle_websocket_upgrade(self, event: Any) -> None:
        self._head_due.cancel()
        super().handle_websocket_upgrade(event)

    def on_response_complete(self) -> None:
        self._head_due.cancel()
        self._head_due = self.loop.call_later(HEAD_S, self._hang_up)
        super().on_response_complete()

    def _hang_up(self) -> None:
        if self.cycle is None or self.cycle.response_complete:
            self.transport.abort()


def allow_many() -> None:
    """Many open files, if the system lets this process have them: each node holds one, and so does each caller."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
