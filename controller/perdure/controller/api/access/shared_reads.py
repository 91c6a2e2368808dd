"""Serves requests for shared answers without the router, once the router has served an equal one.

When a job changes, every page that shows it reads its list again. To match the route and to parse the same parameters
for each of a hundred pages takes many times as long as to send the answer, and the reports of nodes wait meanwhile.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from fastapi.responses import Response
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from perdure.controller.api.access.permissions import Caller
from perdure.controller.api.access.rate_limits import RateLimits, TooManyRequests
from perdure.controller.api.access.shared_answers import SharedAnswers
from perdure.controller.api.auth import IDENTIFIED, Identified, identify_user
from perdure.controller.api.context import ApiContext
from perdure.controller.api.dashboard.sign_in import BrowserSessions
from perdure.controller.api.request_precheck import client_address
from perdure.controller.api.schemas import accepts_gzip, json_bytes
from perdure.controller.store.access.roles import AccessRight

_MAX_KNOWN = 100
_MAX_QUERY_BYTES = 2000

Compute = Callable[[bool], Awaitable[bytes]]
"""Computes the JSON of an answer; compressed if the argument is true."""
_Key = tuple[str, bytes, str | None]  # path, query, what the caller may see


@dataclass(frozen=True)
class KnownRequest:
    """What the router has found out about a request. `route`: for the metrics."""

    key: _Key
    needs: AccessRight
    compute: Compute
    route: Any


class SharedReads:
    """The requests that have a shared answer. On the event loop."""

    def __init__(self, answers: SharedAnswers) -> None:
        self._answers = answers
        self._known: OrderedDict[_Key, KnownRequest] = OrderedDict()  # the one used last is the last
        self._sending = asyncio.Lock()

    async def answer(self, request: Request, caller: Caller, needs: AccessRight, compute: Compute) -> Response:
        """A route's answer to a request that needs a permission. Equal requests, of callers who see the same, share it.

        Raises what `compute` raises, or has raised for this request in front of the router.
        """
        scope = request.scope
        identified: Identified | None = scope.get(IDENTIFIED)
        if identified is not None and identified.failure is not None:
            raise identified.failure
        key = _key(scope, caller)
        known = KnownRequest(key, needs, compute, scope["route"])
        if len(scope["query_string"]) <= _MAX_QUERY_BYTES:
            self._known[key] = known
            if len(self._known) > _MAX_KNOWN:
                self._known.popitem(last=False)
        return await self.answer_known(known, scope)

    def has_path(self, path: str) -> bool:
        """Whether a request with this path is known."""
        return any(known_path == path for known_path, _, _ in self._known)

    def find(self, scope: Scope, caller: Caller) -> KnownRequest | None:
        """The request, if it is known and the caller has the permission that it needs."""
        known = self._known.get(_key(scope, caller))
        if known is None or known.needs not in caller.permissions:
            return None
        self._known.move_to_end(known.key)
        return known

    async def answer_known(self, known: KnownRequest, scope: Scope) -> Response:
        """Raises what computing the answer raises."""
        is_gzip = accepts_gzip(Headers(scope=scope))
        body = await self._answers.of((known.key, is_gzip), lambda: known.compute(is_gzip))
        async with self._sending:
            # All that waited for the answer go on at once. Before each of them, the event loop handles what has come
            # in: a hundred responses in a row would keep the reports of nodes waiting.
            await asyncio.sleep(0)
        return json_bytes(body, is_gzip=is_gzip)


def _key(scope: Scope, caller: Caller) -> _Key:
    return scope["path"], scope["query_string"], caller.sees


class SharedReadsShortcut:
    """ASGI middleware in front of the router. It passes on what it cannot answer, with what it has found out, and
    whatever fails: the router produces the error responses."""

    def __init__(self, app: ASGIApp, context: ApiContext) -> None:
        self._app = app
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        response = None
        if scope["type"] == "http" and scope["method"] == "GET":
            reads: SharedReads = scope["app"].state.shared_reads
            if reads.has_path(scope["path"]):
                response = await self._answer(scope, reads)
        await (self._app if response is None else response)(scope, receive, send)

    async def _answer(self, scope: Scope, reads: SharedReads) -> Response | None:
        state = scope["app"].state
        sessions: BrowserSessions = state.browser_sessions
        limits: RateLimits = state.rate_limits
        headers = Headers(scope=scope)
        try:
            if "authorization" not in headers:
                await sessions.refresh()
            caller = identify_user(self._context, sessions, headers, "GET", client_address(scope))
        except Exception:  # noqa: BLE001 - the router fails again, and says how
            return None
        identified = scope[IDENTIFIED] = Identified(caller)
        known = None if caller is None else reads.find(scope, caller)
        if caller is None or known is None:
            return None
        try:
            if caller.token_id:
                limits.count_call(caller.name)
                identified.is_counted = True
        except TooManyRequests as refusal:
            identified.refusal = refusal
            return None
        try:
            response = await reads.answer_known(known, scope)
        except Exception as failure:  # noqa: BLE001 - the router raises it, where it becomes an error response
            identified.failure = failure
            return None
        scope["route"] = known.route
        return response
