"""Which modules have the routes below which path. A module is imported when the first request for one of its paths
arrives.

A daemon that starts after a crash is waited for, and building all routes takes a fifth of the time of its imports.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from perdure.controller.api.access.permissions import declaration

_PACKAGE = "perdure.controller.api"
SECTIONS: dict[str, tuple[str, ...]] = {
    "routes.administration.controller": ("/healthz", "/api/v1/clouds", "/api/v1/controller", "/api/v1/gpus"),
    "routes.administration.metrics": ("/metrics",),
    "routes.notifications": ("/api/v1/notifications",),
    "routes.administration.upgrade": ("/api/v1/controller",),
    "routes.administration.users": ("/api/v1/tokens", "/api/v1/users", "/api/v1/whoami"),
    "routes.administration.audit": ("/api/v1/audit",),
    "routes.jobs": ("/api/v1/jobs", "/api/v1/plan"),
    "routes.schedules": ("/api/v1/schedules",),
    "routes.sweeps": ("/api/v1/sweeps",),
    "routes.usage": ("/api/v1/jobs",),
    "routes.nodes": ("/api/v1/nodes",),
    "routes.clusters": ("/api/v1/cluster-ids", "/api/v1/cluster-queues", "/api/v1/clusters"),
    "routes.services": ("/api/v1/service-ids", "/api/v1/services"),
    "routes.logs": ("/api/v1/controller", "/api/v1/jobs"),
    "routes.uploads": ("/api/v1/uploads",),
    "routes.node_files": (
        "/agent/v1/artifacts",
        "/agent/v1/home",
        "/agent/v1/spec",
        "/agent/v1/token",
        "/agent/v1/uploads",
    ),
    "dashboard.session": ("/api/v1/session",),
    "dashboard.oidc": ("/api/v1/session",),
    "dashboard.events": ("/api/v1/events",),
    "dashboard.job_spec": ("/api/v1/jobs", "/api/v1/tasks"),
    "dashboard.job_history": ("/api/v1/jobs",),
    "dashboard.log_pages": ("/api/v1/jobs",),
    "dashboard.market": ("/api/v1/market",),
    "dashboard.savings": ("/api/v1/savings",),
    "dashboard.fleet": ("/api/v1/controllers", "/api/v1/nodes"),
    "dashboard.pages": (
        *("/", "/assets", "/clusters", "/controllers", "/jobs", "/launch", "/market", "/nodes", "/savings"),
        *("/login", "/schedules", "/services", "/sweeps", "/users"),
    ),
}
"""Module → the `path_head` of each of its routes. A request is matched in this order, whichever module came first."""
_UNDOCUMENTED = frozenset({"dashboard.pages"})
_VERSIONED = ("api", "agent")


def path_head(path: str) -> str:
    """The first word of a path; with the version before it, if it has one: `/api/v1/jobs/7/logs` → `/api/v1/jobs`."""
    words = path.split("/")
    return "/".join(words[:4] if len(words) > 1 and words[1] in _VERSIONED else words[:2])


def load_module(name: str) -> Any:
    """The module of a section."""
    return import_module(f"{_PACKAGE}.{name}")


def require_declarations(router: APIRouter) -> None:
    """Raises TypeError if a route does not say who may call it: a route that forgot to would be open to everybody."""
    for route in router.routes:
        if not isinstance(route, APIRoute) or declaration(route.dependant) is None:
            raise TypeError(f"{route} declares no permission: see perdure.controller.api.access.permissions")


class RouteSections:
    """Adds the routes of modules to an application. Used on the event loop only."""

    def __init__(self, app: FastAPI) -> None:
        self._app = app
        self._own = list(app.router.routes)
        self._routes: dict[str, list[BaseRoute]] = {}  # of the modules that are included

    def missing(self, path: str) -> list[str]:
        """The modules that may have a route for `path` and are not included yet."""
        head = path_head(path)
        is_for_all = path == self._app.openapi_url
        return [n for n, heads in SECTIONS.items() if (is_for_all or head in heads) and n not in self._routes]

    def include(self, names: Iterable[str]) -> None:
        """Add the routes of these modules, and import them if nobody has. Idempotent."""
        routes = self._app.router.routes
        for name in names:
            if name in self._routes:
                continue
            router: APIRouter = load_module(name).router
            require_declarations(router)
            before = len(routes)
            self._app.include_router(router, include_in_schema=name not in _UNDOCUMENTED)
            self._routes[name] = routes[before:]
        routes[:] = [*self._own, *(route for name in SECTIONS for route in self._routes.get(name, ()))]

    def include_all(self) -> None:
        """Add the routes of every module: for the OpenAPI document."""
        self.include(SECTIONS)


class SectionLoader:
    """ASGI middleware in front of the router: before a request is matched, the modules that may serve it are included.

    They are imported in a thread, because imports would delay the heartbeats of nodes.
    """

    def __init__(self, app: ASGIApp, sections: RouteSections, load: Callable[[str], object] = load_module) -> None:
        self._app = app
        self._sections = sections
        self._load = load

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (names := self._sections.missing(scope["path"])):
            await asyncio.to_thread(lambda: [self._load(name) for name in names])
            self._sections.include(names)
        await self._app(scope, receive, send)
