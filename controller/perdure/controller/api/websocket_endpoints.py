"""ASGI middleware in front of the router: every WebSocket (sessions of nodes, streams), and the node spec."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Sequence
from typing import Any

import structlog
from fastapi.responses import JSONResponse
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from perdure.controller.api.access.permissions import authenticate_token
from perdure.controller.api.auth import NodeIdentity, identify, identify_owned
from perdure.controller.api.context import ApiContext
from perdure.controller.api.request_precheck import NO_TOKEN, bearer, is_own_host
from perdure.controller.api.serve.peer_streams import PATH as PEER_STREAMS
from perdure.controller.api.serve.peer_streams import PeerStreams
from perdure.controller.api.server.sockets import NodeSocket, StreamSocket
from perdure.controller.api.tunnel.broker import StreamBroker, ends_stream
from perdure.controller.runtime.batcher import Batcher
from perdure.controller.store.access.roles import AccessRight
from perdure.controller.store.engine.database import UNAVAILABLE
from perdure.controller.store.records.agent_connections import Place
from perdure.controller.submit.errors import RequestRejected

log = structlog.get_logger(__name__)

CHANNEL = "/agent/v1/channel"
SPEC = "/agent/v1/spec"
NODE_STREAMS = "/agent/v1/streams/"
USER_STREAMS = "/api/v1/streams"
_NO_STREAM = {"error": {"message": "no such stream is expected of this node", "where": "path", "fix": ""}}
_NO_ATTEMPT = {"error": {"message": "this token belongs to no attempt", "where": "Authorization", "fix": ""}}
_NO_DATABASE = {"error": {"message": "the controller's database is unavailable", "where": None, "fix": "try again"}}


class WebSocketEndpoints:
    """Serves the most frequent requests of nodes without the router, and passes everything else to `app`.

    That includes requests that fail here: the routes produce the error responses. There are thousands of connections
    that last for weeks, and each layer between the server and a handler stays in memory as long as its connection.
    `hosts`: as in `RequestPrecheck`.
    """

    def __init__(self, app: ASGIApp, context: ApiContext, hosts: Collection[str]) -> None:
        self._app = app
        self._context = context
        self._hosts = frozenset(hosts) | {"localhost"}
        self._broker = broker = StreamBroker(context)
        self._peers: PeerStreams | None = None
        if context.services is not None:
            self._peers = peers = _peer_streams(context, broker, context.services.sharing.owner)
            context.services.proxies.attach(peers.open, ends_stream)
        self._specs: Batcher[Place, dict[str, Any] | None] = Batcher("specs", self._build_specs)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            try:
                await self._serve_websocket(scope, receive, send)
            except UNAVAILABLE as error:  # the client tries again
                log.warning("database.unavailable", error=str(error).partition("\n")[0])
                if scope:  # it was not accepted yet; otherwise the server closes it
                    await _deny(NodeSocket(scope, receive, send), 503, _NO_DATABASE)
        elif scope["type"] == "http" and scope["path"] == SPEC and (node_spec := await self._spec(scope)) is not None:
            await JSONResponse(node_spec)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _serve_websocket(self, scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope["path"]
        headers = Headers(scope=scope)  # not `socket.headers`, which would stay in memory
        is_known = path in (CHANNEL, USER_STREAMS, PEER_STREAMS) or path.startswith(NODE_STREAMS)
        if not is_known or not is_own_host(headers.get("host", ""), self._hosts):
            await NodeSocket(scope, receive, send).close(1008)
            return
        token, rank = _claims_of(headers)
        del headers
        if path == USER_STREAMS:
            client = scope.get("client")
            await self._serve_user(StreamSocket(scope, receive, send), token, str(client[0]) if client else "")
            return
        if path == PEER_STREAMS and self._peers is not None:
            await self._peers.serve(StreamSocket(scope, receive, send), token)
            return
        node = await self._identify(token, rank)
        if node is None:
            await _deny(NodeSocket(scope, receive, send), 401, _NO_ATTEMPT)
        elif path == CHANNEL:
            await self._context.sessions.serve(NodeSocket(scope, receive, send), node.place)
        else:
            await self._serve_stream(StreamSocket(scope, receive, send), node, path.removeprefix(NODE_STREAMS))

    async def _serve_user(self, socket: StreamSocket, token: str, address: str) -> None:
        caller = authenticate_token(self._context, token, address)
        if caller is None:
            await _deny(socket, 401, {"error": NO_TOKEN})
            return
        try:
            caller.require(AccessRight.RUN, "node.enter")
        except RequestRejected as rejected:
            error = {"message": rejected.message, "where": rejected.where, "fix": rejected.fix}
            await _deny(socket, rejected.status, {"error": error})
            return
        await self._broker.serve_user(socket, caller)

    async def _serve_stream(self, socket: StreamSocket, node: NodeIdentity, stream_id: str) -> None:
        if not await self._broker.serve_node(socket, node.place, stream_id):
            await _deny(socket, 404, _NO_STREAM)

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


def _peer_streams(context: ApiContext, broker: StreamBroker, owner: str) -> PeerStreams:
    """Streams to the replicas of services, whichever controller their nodes are connected to."""
    return PeerStreams(
        context.database,
        context.clock,
        context.keyring,
        owner,
        context.time_scale.speed,
        local=broker.open_service,
        is_local=broker.is_connected,
        ends_stream=ends_stream,
    )


async def _deny(socket: WebSocket, status: int, content: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):  # the other side has closed the connection
        await socket.send_denial_response(JSONResponse(content, status_code=status))


def _claims_of(headers: Headers) -> tuple[str, str]:
    """The token and the rank that a node sends."""
    return bearer(headers.get("authorization", "")), headers.get("perdure-rank", "0")
