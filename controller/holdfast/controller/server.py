"""The HTTP server of a daemon: how it speaks, and when it begins to."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

import uvicorn
from starlette.types import ASGIApp

from holdfast.controller.callers import MAX_MESSAGE_BYTES, AgentLine, HeadInTime
from holdfast.controller.tls import Tls


class Server(uvicorn.Server):
    """Calls `begin` before the first request is taken; until then callers wait in the socket's queue."""

    def __init__(self, app: ASGIApp, tls: Tls | None, *, begin: Callable[[], None]) -> None:
        config = uvicorn.Config(
            app,
            log_config=None,
            http=HeadInTime,
            ws_max_size=MAX_MESSAGE_BYTES,
            ws=AgentLine,
            ws_per_message_deflate=False,
            ws_ping_interval=None,  # nodes give signs of life by themselves
            access_log=False,
            proxy_headers=False,
            timeout_graceful_shutdown=2,
            lifespan="off",
            server_header=False,
            ssl_certfile=tls.cert if tls else None,
            ssl_keyfile=tls.key if tls else None,
        )
        super().__init__(config)
        self._begin = begin

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await asyncio.to_thread(self._begin)
        await super().startup(sockets)
