"""Counts the requests of users: ASGI middleware around the router."""

from __future__ import annotations

import time

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from perdure.controller.runtime.metrics.daemon_metrics import DaemonMetrics
from perdure.controller.runtime.metrics.metric_registry import OTHER

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class RequestMetrics:
    """Measures the time to the start of each response, by the route's template: never by the path, which callers
    choose."""

    def __init__(self, app: ASGIApp, metrics: DaemonMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                route = getattr(scope.get("route"), "path", OTHER)
                method = scope["method"] if scope["method"] in _METHODS else OTHER
                self._metrics.http_requests.inc(route, method, str(message["status"]))
                self._metrics.http_seconds.observe(time.perf_counter() - started, route)
            await send(message)

        await self._app(scope, receive, counted)
