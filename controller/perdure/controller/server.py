"""The HTTP server of a daemon: how it speaks, and when it begins to."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial

import uvicorn
from starlette.types import ASGIApp

from perdure.controller.callers import BACKLOG, MAX_MESSAGE_BYTES, AgentLine, HeadInTime, Turnstile
from perdure.controller.courtesy import Courtesy
from perdure.controller.tls import Tls


class Server(uvicorn.Server):
    """Calls `begin` before the first request is taken; until then callers wait in the socket's queue, and `courtesy` is
    due to them. Nodes wait at the turnstile until the jobs that there are have been taken up, which is what `begin`
    returns."""

    def __init__(self, app: ASGIApp, tls: Tls | None, courtesy: Courtesy, *, begin: Callable[[], Future[None]]) -> None:
        self._turnstile = Turnstile()
        config = uvicorn.Config(
            app,
            log_config=None,
            http=partial(HeadInTime, turnstile=self._turnstile),  # type: ignore[arg-type]  # it is only called
            backlog=BACKLOG,
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
        self._courtesy = courtesy
        self._begin = begin

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        with self._courtesy:
            taken_up = await asyncio.to_thread(self._begin)
            taken_up.add_done_callback(lambda _: self._turnstile.open())
            await super().startup(sockets)
