"""Checks made before routing: which host a request is for, its size, and the token of requests with a body.

A page in a user's browser may send requests to any name that resolves to this address (DNS rebinding). Such a name
appears in the request's `Host` and is not one of this controller's names. `/healthz`, which reveals nothing, is served
under any name, or without one: load balancers use arbitrary names, and HTTP/1.0 has no `Host` at all. No other origin
is allowed: the API sends no CORS headers, and it accepts tokens only in the `Authorization` header, which a browser
never adds by itself, and cookies only together with a header that another site cannot add (`dashboard.sign_in`).

Routes check the token after the body has been read. The token of a user's request with a body is therefore checked here
first, so that an unauthenticated body is never kept in memory.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Collection

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_JSON_BYTES = 16 * 2**20
_USERS = "/api/v1/"
_UPLOADS = "/api/v1/uploads/"
_HEALTH = "/healthz"
SIGN_IN = "/api/v1/session"
CODE_OWNER = f"{SIGN_IN}/codes/owner"
COMMAND_LINE = f"{SIGN_IN}/command-line"
_OF_ANYBODY = frozenset({SIGN_IN, CODE_OWNER, f"{COMMAND_LINE}/token"})
_MAX_SIGN_IN_BYTES = 4096

_UNKNOWN_HOST = {
    "message": "this controller does not have this host name",
    "where": "Host",
    "fix": "call it by an IP address, or add the name to listen.dns_names in its config.yaml",
}
_SEVERAL_HOSTS = {"message": "a request must name exactly one host", "where": "Host", "fix": "send one Host header"}
NO_TOKEN = {
    "message": "the token is missing or wrong",
    "where": "Authorization",
    "fix": "send `Authorization: Bearer <token>`; the embedded controller keeps its token in PERDURE_HOME/token",
}


class RequestPrecheck:
    """ASGI middleware that rejects requests before they are routed."""

    def __init__(self, app: ASGIApp, hosts: Collection[str], is_user: Callable[[Headers, str, str], bool]) -> None:
        """`hosts`: the host names of this controller, in lower case; its IP addresses need not be listed.

        `is_user`: whether the headers of a request with this method, from this address, are a user's.
        """
        self._app = app
        self._hosts = frozenset(hosts) | {"localhost"}
        self._is_user = is_user

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        is_health = scope["type"] == "http" and scope["path"] == _HEALTH
        if (hosts := len(headers.getlist("host"))) > 1 or (hosts == 0 and scope["http_version"] == "1.1"):
            await _reject(scope, receive, send, 400, _SEVERAL_HOSTS)
        elif not is_health and not is_own_host(headers.get("host", ""), self._hosts):
            await _reject(scope, receive, send, 421, _UNKNOWN_HOST)
        elif _has_user_body(scope) and not self._is_user(headers, scope["method"], client_address(scope)):
            await _reject(scope, receive, send, 401, NO_TOKEN)
        elif scope["type"] == "websocket" or scope["path"].startswith(_UPLOADS):
            await self._app(scope, receive, send)
        else:
            limit = _MAX_SIGN_IN_BYTES if scope["path"] in _OF_ANYBODY else MAX_JSON_BYTES
            await self._app(scope, _limit_body(receive, limit), send)


def is_own_host(host: str, names: Collection[str]) -> bool:
    """Whether a `Host` header names this controller. IP addresses always do: DNS rebinding needs a name."""
    name = host.strip().lower()
    name = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]
    if name.rstrip(".") in names:
        return True
    try:
        return bool(ipaddress.ip_address(name))
    except ValueError:
        return False


def client_address(scope: Scope) -> str:
    """The address that a request comes from, which may be a proxy's."""
    client = scope.get("client")
    return str(client[0]) if client else ""


def bearer(authorization: str) -> str:
    """The bearer token of an `Authorization` header; empty if there is none."""
    scheme, _, token = authorization.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _has_user_body(scope: Scope) -> bool:
    """Whether this is a user's request with a body. A browser that signs in is nobody yet."""
    has_body = scope["type"] == "http" and scope["method"] in ("POST", "PUT", "PATCH")
    return has_body and scope["path"].startswith(_USERS) and scope["path"] not in _OF_ANYBODY


def _limit_body(receive: Receive, max_bytes: int) -> Receive:
    """Wrap `receive`: raises HTTPException (413) beyond the limit. A chunked body does not announce its length."""
    remaining = max_bytes

    async def limited() -> Message:
        nonlocal remaining
        message = await receive()
        remaining -= len(message.get("body", b""))
        if remaining < 0:
            raise HTTPException(413, f"the request is larger than {_size(max_bytes)}")
        return message

    return limited


def _size(size_bytes: int) -> str:
    return f"{size_bytes >> 20} MiB" if size_bytes >= 2**20 else f"{size_bytes >> 10} KiB"


async def _reject(scope: Scope, receive: Receive, send: Send, status: int, detail: dict[str, str]) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
        return
    await JSONResponse({"error": detail}, status_code=status)(scope, receive, send)
