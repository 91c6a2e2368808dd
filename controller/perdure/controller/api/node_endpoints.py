"""ASGI middleware that answers nodes before the router: the WebSocket of their sessions, and the node spec."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Sequence
from typing import Any

from fastapi.responses import JSONResponse
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from perdure.controller.api.auth import NodeIdentity, identify, identify_owned
from perdure.controller.api.context import ApiContext
from perdure.controller.api.gate import bearer, is_own_host
from perdure.controller.api.server.node_websocket import PROTOCOL_EXTENSION
from perdure.controller.runtime.batcher import Batcher
from perdure.controller.store.engine.database import UNAVAILABLE
from perdure.controller.store.records.agent_connections import Place

CHANNEL = "/agent/v1/channel"
SPEC = "/agent/v1/spec"
_NO_ATTEMPT = {"error": {"message": "this token belongs to no attempt", "where": "Authorization", "fix": ""}}


class NodeSocket(WebSocket):
    """The WebSocket of a node. It frees the memory of the handshake, since it lasts for weeks."""

    async def accept(self, *args: Any, **kwargs: Any) -> None:
        await super().accept(*args, **kwargs)
        protocol = self.scope.get("extensions", {}).get(PROTOCOL_EXTENSION)
        if protocol is not None:
            self.scope = {"type": "websocket", "extensions": {PROTOCOL_EXTENSION: protocol}}
            protocol.release_handshake(self.scope)

    @property
    def last_received_at(self) -> float:
        """When the last data arrived, by the event loop's clock; 0 if the server does not record it."""
        protocol = self.scope.get("extensions", {}).get(PROTOCOL_EXTENSION)
        return float(protocol.last_received_at) if protocol else 0.0


class NodeEndpoints:
    """Serves the most frequent requests of nodes without the router, and passes everything else to `app`.

    That includes requests that fail here: the routes produce the error responses. There are thousands of connections
    that last for weeks, and each layer between the server and a handler stays in memory as long as its connection.
    `hosts`: as in `Gate`.
    """

    def __init__(self, app: ASGIApp, context: ApiContext, hosts: Collection[str]) -> None:
        self._app = app
        self._context = context
        self._hosts = frozenset(hosts) | {"localhost"}
        self._specs: Batcher[Place, dict[str, Any] | None] = Batcher("specs", self._build_specs)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._open_session(NodeSocket(scope, receive, send))
        elif scope["type"] == "http" and scope["path"] == SPEC and (node_spec := await self._spec(scope)) is not None:
            await JSONResponse(node_spec)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _open_session(self, socket: NodeSocket) -> None:
        headers = Headers(scope=socket.scope)  # not `socket.headers`, which would stay in memory
        if socket.scope["path"] != CHANNEL or not is_own_host(headers.get("host", ""), self._hosts):
            await socket.close(1008)
            return
        claims = _claims_of(headers)
        del headers
        node = await self._identify(*claims)
        if node is None:
            with contextlib.suppress(OSError):  # the node has closed the connection
                await socket.send_denial_response(JSONResponse(_NO_ATTEMPT, status_code=401))
            return
        await self._context.sessions.serve(socket, node.place)

    async def _spec(self, scope: Scope) -> dict[str, Any] | None:
        """The node spec; None if the route has to produce an error."""
        headers = Headers(scope=scope)
        if scope["method"] != "GET" or not is_own_host(headers.get("host", ""), self._hosts):
            return None
        with contextlib.suppress(*UNAVAILABLE):
            node = await self._identify(*_claims_of(headers))
            return await self._specs.submit(node.place) if node is not None and node.is_live else None
        return None

    async def _identify(self, token: str, rank: str) -> NodeIdentity | None:
        """Authenticate a node: without the database if this daemon owns its job."""
        node = identify_owned(self._context, token, rank)
        return node or await asyncio.to_thread(identify, self._context, token, rank)

    def _build_specs(self, places: Sequence[Place]) -> list[dict[str, Any] | Exception | None]:
        """The specs of nodes that have requested them at the same time, in one transaction."""
        with self._context.database.connect() as conn:
            return self._context.node_specs.build_all(conn, places)


def _claims_of(headers: Headers) -> tuple[str, str]:
    """The token and the rank that a node sends."""
    return bearer(headers.get("authorization", "")), headers.get("perdure-rank", "0")
