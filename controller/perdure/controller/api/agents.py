"""Routes for nodes: the spec, files by digest, the channel."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection
from typing import Any

from fastapi import APIRouter
from fastapi.responses import FileResponse, JSONResponse
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from perdure.controller.api.auth import Admission, Node, Parts, admit, known
from perdure.controller.api.gate import bearer, is_ours
from perdure.controller.api.schemas import content, refusals
from perdure.controller.api.uploads import Digest, checked
from perdure.controller.callers import LINE
from perdure.controller.crashpoints import reach
from perdure.controller.refusing import Refused
from perdure.controller.services import Services
from perdure.controller.store.database import UNAVAILABLE

router = APIRouter(prefix="/agent/v1", tags=["agents"], responses=refusals(400, 401, 503))

CHANNEL, SPEC = "/agent/v1/channel", "/agent/v1/spec"
_NO_ATTEMPT = {"error": {"message": "this token is worth no attempt", "where": "Authorization", "fix": ""}}
_FILE = content("application/octet-stream") | refusals(404)


@router.get("/spec")
def spec(node: Node, daemon: Parts) -> dict[str, Any]:
    """The node spec of docs/agent-protocol.md. Holds the task's secrets."""
    found = _spec(daemon, node)
    if found is None:
        raise Refused("there is no such attempt", where="Authorization", status=401)
    return found


def _spec(daemon: Services, node: Admission) -> dict[str, Any] | None:
    with daemon.database.connect() as conn:
        found = daemon.specs.spec(conn, *node.place)
    if found is not None:
        reach("spec.told")
    return found


@router.get("/uploads/{digest}", response_class=FileResponse, responses=_FILE)
def upload(node: Node, daemon: Parts, digest: Digest) -> FileResponse:
    """A tar.gz that the node's own task names; any other is not found."""
    with daemon.database.connect() as conn:
        named = daemon.specs.uploads(conn, node.place[0])
    if digest not in named:
        raise _no_file()
    return _file(daemon, digest)


@router.get("/artifacts/{digest}", response_class=FileResponse, responses=_FILE)
def artifact(_: Node, daemon: Parts, digest: Digest) -> FileResponse:
    """The agent, or a tool that it needs."""
    return _file(daemon, digest)


class AgentSocket(WebSocket):
    """A node's end of the line, as ASGI has it."""

    async def accept(self, *given: Any, **named: Any) -> None:
        """Of a connection that lasts for weeks, nothing is kept of how it began."""
        await super().accept(*given, **named)
        line = self.scope.get("extensions", {}).get(LINE)
        if line is not None:
            self.scope = {"type": "websocket", "extensions": {LINE: line}}
            line.forget(self.scope)

    @property
    def heard_at(self) -> float:
        """When anything came of it, by the loop's clock; 0 where the server does not tell."""
        line = self.scope.get("extensions", {}).get(LINE)
        return float(line.heard_at) if line else 0.0


class Nodes:
    """Takes what nodes ask most before any route does, and leaves the rest to `app`, what goes wrong too.

    There are thousands of connections, they last for weeks, and each layer that one comes through is kept in memory for
    as long. `hosts`: as `Gate` has them.
    """

    def __init__(self, app: ASGIApp, daemon: Services, hosts: Collection[str]) -> None:
        self._app = app
        self._daemon = daemon
        self._hosts = frozenset(hosts) | {"localhost"}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await self._connect(AgentSocket(scope, receive, send))
        elif scope["type"] == "http" and scope["path"] == SPEC and (found := await self._spec(scope)) is not None:
            await JSONResponse(found)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _connect(self, socket: AgentSocket) -> None:
        headers = Headers(scope=socket.scope)  # of its own: the socket would keep them
        if socket.scope["path"] != CHANNEL or not is_ours(headers.get("host", ""), self._hosts):
            await socket.close(1008)
            return
        shown = _shown(headers)
        del headers
        node = known(self._daemon, *shown) or await asyncio.to_thread(admit, self._daemon, *shown)
        if node is None:
            with contextlib.suppress(OSError):  # it went away without waiting for the answer
                await socket.send_denial_response(JSONResponse(_NO_ATTEMPT, status_code=401))
            return
        await self._daemon.channel.serve(socket, node.place)

    async def _spec(self, scope: Scope) -> dict[str, Any] | None:
        """What a node is told; None where the route is to say why not."""
        headers = Headers(scope=scope)
        if scope["method"] != "GET" or not is_ours(headers.get("host", ""), self._hosts):
            return None

        def look() -> dict[str, Any] | None:
            node = admit(self._daemon, *_shown(headers))
            return _spec(self._daemon, node) if node is not None and node.is_live else None

        with contextlib.suppress(*UNAVAILABLE):
            return await asyncio.to_thread(look)
        return None


def _shown(headers: Headers) -> tuple[str, str]:
    """The token and the rank that a node shows."""
    return bearer(headers.get("authorization", "")), headers.get("perdure-rank", "0")


def _file(daemon: Services, digest: str) -> FileResponse:
    path = daemon.files.path(checked(digest))
    if path is None:
        raise _no_file()
    return FileResponse(path, media_type="application/octet-stream")


def _no_file() -> Refused:
    return Refused("there is no such file", where="digest", status=404)
