"""What is looked at before any route: whom a request is meant for, who sends it, and how much it wants to say.

A page in a user's browser may send requests to any name that resolves to this address (DNS rebinding). Such a name is
in the request's `Host`, and is none of ours. `/healthz`, which tells nothing, is answered under any name and under
none: balancers ask by what they like, and HTTP/1.0 has no `Host` at all. Nothing here allows any other origin: the API
sends no CORS headers, and its tokens are taken from the `Authorization` header alone, which a browser never adds by
itself.

Of a user's request, the token is looked at here already: routes look at it when the body has been read, and nothing of
what a stranger sends is worth keeping in memory.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Collection

from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MOST_JSON_BYTES = 16 * 2**20
_USERS = "/api/v1/"
_UPLOADS = "/api/v1/uploads/"
_HEALTH = "/healthz"


_NOT_CALLED_SO = {
    "message": "this controller is not called so",
    "where": "Host",
    "fix": "call it by an IP address, or add the name to listen.names of its config.yaml",
}
_NOT_ONE_HOST = {"message": "a request names one host", "where": "Host", "fix": "send one Host header"}
NO_TOKEN = {
    "message": "the token is missing or wrong",
    "where": "Authorization",
    "fix": "send `Authorization: Bearer <token>`; the embedded controller keeps its token in PERDURE_HOME/token",
}


class Gate:
    """`hosts`: the names, in lower case, by which this controller is called besides its IP addresses.

    `is_user`: whether a token is a user's.
    """

    def __init__(self, app: ASGIApp, hosts: Collection[str], is_user: Callable[[str], bool]) -> None:
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
            await _refuse(scope, receive, send, 400, _NOT_ONE_HOST)
        elif not is_health and not is_ours(headers.get("host", ""), self._hosts):
            await _refuse(scope, receive, send, 421, _NOT_CALLED_SO)
        elif _says_much(scope) and not self._is_user(bearer(headers.get("authorization", ""))):
            await _refuse(scope, receive, send, 401, NO_TOKEN)
        elif scope["type"] == "websocket" or scope["path"].startswith(_UPLOADS):
            await self._app(scope, receive, send)
        else:
            await self._app(scope, _limited(receive), send)


def is_ours(host: str, names: Collection[str]) -> bool:
    """Whether a `Host` header names this controller: no name can be rebound to an address that is written out."""
    name = host.strip().lower()
    name = name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]
    if name.rstrip(".") in names:
        return True
    try:
        return bool(ipaddress.ip_address(name))
    except ValueError:
        return False


def bearer(authorization: str) -> str:
    """The token of an `Authorization` header; empty where it holds none."""
    scheme, _, token = authorization.partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _says_much(scope: Scope) -> bool:
    """Whether this is a user's request that has a body."""
    return scope["type"] == "http" and scope["path"].startswith(_USERS) and scope["method"] in ("POST", "PUT", "PATCH")


def _limited(receive: Receive) -> Receive:
    """`receive` up to the limit, then a refusal: a chunked body does not say its length before."""
    left = MOST_JSON_BYTES

    async def limited() -> Message:
        nonlocal left
        message = await receive()
        left -= len(message.get("body", b""))
        if left < 0:
            raise HTTPException(413, f"the request is larger than {MOST_JSON_BYTES >> 20} MiB")
        return message

    return limited


async def _refuse(scope: Scope, receive: Receive, send: Send, status: int, told: dict[str, str]) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
        return
    await JSONResponse({"error": told}, status_code=status)(scope, receive, send)
