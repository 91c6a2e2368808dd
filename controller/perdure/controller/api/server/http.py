"""The HTTP server: its configuration, and what happens before it accepts requests."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

import uvicorn
import uvloop
from starlette.types import ASGIApp

from perdure.controller.api.server.node_websocket import NodeWebSocketProtocol
from perdure.controller.api.server.protocols import (
    BACKLOG,
    HEADER_TIMEOUT_S,
    ConnectionAdmission,
    HeaderTimeoutProtocol,
)
from perdure.controller.runtime.request_priority import RequestPriorityGate
from perdure.controller.runtime.security.tls import Tls


class EventLoop(uvloop.Loop):
    """A loop whose TLS servers give a caller as long for the handshake as for the head of a request.

    uvicorn has no setting for it, and the loop's own limit of 60 s would hold a connection open four times as long.
    """

    async def create_server(self, *args: Any, **kwargs: Any) -> Any:
        if kwargs.get("ssl") is not None:
            kwargs.setdefault("ssl_handshake_timeout", HEADER_TIMEOUT_S)
        return await super().create_server(*args, **kwargs)


class Server(uvicorn.Server):
    """The HTTP server of a daemon.

    `on_startup` is called before the first request is accepted. It returns a future; nodes are admitted once that is
    done, because the daemon has adopted its jobs by then. `request_priority` is held meanwhile: requests wait in the
    socket's queue. `on_shutdown` is called when no more requests are accepted.
    """

    def __init__(
        self,
        app: ASGIApp,
        tls: Tls | None,
        request_priority: RequestPriorityGate,
        *,
        on_startup: Callable[[], Future[None]],
        on_shutdown: Callable[[], None] = lambda: None,
    ) -> None:
        self._admission = ConnectionAdmission()
        config = uvicorn.Config(
            app,
            log_config=None,
            http=partial(HeaderTimeoutProtocol, admission=self._admission),  # type: ignore[arg-type]  # uvicorn only calls it
            backlog=BACKLOG,
            ws=NodeWebSocketProtocol,
            access_log=False,
            proxy_headers=False,
            timeout_graceful_shutdown=2,
            lifespan="off",
            server_header=False,
            ssl_certfile=tls.cert if tls else None,
            ssl_keyfile=tls.key if tls else None,
        )
        super().__init__(config)
        self._request_priority = request_priority
        self._on_startup, self._on_shutdown = on_startup, on_shutdown

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        with self._request_priority:
            adopted = await asyncio.to_thread(self._on_startup)
            adopted.add_done_callback(lambda _: self._admission.open())
            await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._on_shutdown()  # first: the server waits for the responses that are open
        await super().shutdown(sockets)
