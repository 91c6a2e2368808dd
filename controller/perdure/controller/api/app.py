"""Builds the FastAPI application of a daemon, and maps exceptions to error responses.

Every error response is one JSON object: what is wrong, where, what to do. `GET /openapi.json` describes all routes.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse, Response
from sqlalchemy.exc import DataError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp

from perdure.controller.api.access.job_owner_cache import JobOwnerCache
from perdure.controller.api.access.oidc.provider import OidcProvider
from perdure.controller.api.access.rate_limits import RateLimits
from perdure.controller.api.access.shared_answers import SharedAnswers
from perdure.controller.api.access.shared_reads import SharedReads, SharedReadsShortcut
from perdure.controller.api.access.work_slots import WorkSlots
from perdure.controller.api.auth import identify_user
from perdure.controller.api.context import ApiContext
from perdure.controller.api.dashboard.sign_in import BrowserSessions
from perdure.controller.api.request_metrics import RequestMetrics
from perdure.controller.api.request_precheck import RequestPrecheck
from perdure.controller.api.routes.sections import RouteSections, SectionLoader
from perdure.controller.api.websocket_endpoints import WebSocketEndpoints
from perdure.controller.store.queries.expenses import SpendingLedgers
from perdure.controller.submit.errors import RequestRejected
from perdure.sdk.spec.problems import printable

log = structlog.get_logger(__name__)

_DISK_HELP = "nothing was changed; see that its disk has room (PERDURE_HOME), then try again"
_DATABASE_HELP = "try again later; the request was either completed or had no effect"


def application(context: ApiContext) -> ASGIApp:
    """The ASGI application of the daemon: the API, and in front of it the most frequent requests of nodes."""
    return WebSocketEndpoints(create_app(context), context, context.settings.host_names)


def create_app(context: ApiContext) -> FastAPI:
    """The API. Handlers receive `context` by the dependencies of `auth`."""
    app, sections = _without_routes()
    app.state.context = context
    app.add_middleware(SectionLoader, sections=sections)
    app.add_middleware(SharedReadsShortcut, context=context)
    app.add_middleware(RequestMetrics, metrics=context.metrics)
    app.state.browser_sessions = sessions = BrowserSessions(context)
    app.state.rate_limits = RateLimits(context.settings.quotas.requests_per_second)
    app.state.oidc = None if context.oidc is None else OidcProvider(context.oidc, partial(_wall_now, context))
    app.state.work_slots = WorkSlots()
    app.state.spending = SpendingLedgers()
    app.state.shared_reads = SharedReads(SharedAnswers(lambda: context.job_updates.revision))
    app.state.job_owners = JobOwnerCache(context.database)
    is_user = partial(_is_user, context, sessions)
    app.add_middleware(RequestPrecheck, hosts=context.settings.host_names, is_user=is_user)
    app.add_exception_handler(RequestRejected, _on_rejected)
    app.add_exception_handler(HTTPException, _on_http_error)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(OperationalError, _on_database_error)
    app.add_exception_handler(PoolTimeout, _on_database_error)
    app.add_exception_handler(DataError, _on_unstorable)
    app.add_exception_handler(UnicodeEncodeError, _on_unstorable)
    app.add_exception_handler(OSError, _on_os_error)
    app.add_exception_handler(ClientDisconnect, _on_client_gone)
    app.add_exception_handler(Exception, _on_unexpected)
    return app


def openapi_document() -> dict[str, Any]:
    """The OpenAPI document of the API, without a daemon: for documentation."""
    return _without_routes()[0].openapi()


def _without_routes() -> tuple[FastAPI, RouteSections]:
    """An application, and what adds its routes."""
    app = FastAPI(title="Perdure", version="1", docs_url=None, redoc_url=None)
    sections = RouteSections(app)
    app.openapi = partial(_openapi, app, sections)  # type: ignore[method-assign]  # FastAPI's own way to change it
    return app, sections


def _wall_now(context: ApiContext) -> float:
    return context.time_scale.to_wall(context.clock.now())


def _is_user(context: ApiContext, sessions: BrowserSessions, headers: Headers, method: str, address: str) -> bool:
    return identify_user(context, sessions, headers, method, address) is not None


def error_response(
    status: int, message: str, *, where: str | None = None, fix: str = "", headers: dict[str, str] | None = None
) -> JSONResponse:
    detail = {"message": printable(message), "where": where and printable(where), "fix": printable(fix)}
    return JSONResponse({"error": detail}, status_code=status, headers=headers)


def _openapi(app: FastAPI, sections: RouteSections) -> dict[str, Any]:
    """The OpenAPI document without FastAPI's 422 responses: bad input gets 400 here."""
    if app.openapi_schema is None:
        sections.include_all()
        app.openapi_schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
        for path in app.openapi_schema["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
        for unused in ("HTTPValidationError", "ValidationError"):
            app.openapi_schema["components"]["schemas"].pop(unused, None)
    return app.openapi_schema


async def _on_rejected(_: Request, rejection: Exception) -> JSONResponse:
    assert isinstance(rejection, RequestRejected)
    headers = None if rejection.retry_after_s is None else {"Retry-After": str(rejection.retry_after_s)}
    return error_response(
        rejection.status, rejection.message, where=rejection.where, fix=rejection.fix, headers=headers
    )


async def _on_http_error(_: Request, problem: Exception) -> JSONResponse:
    assert isinstance(problem, HTTPException)
    return error_response(problem.status_code, str(problem.detail), headers=dict(problem.headers or {}))


async def _on_database_error(request: Request, problem: Exception) -> JSONResponse:
    reason = str(getattr(problem, "orig", problem)).strip()
    log.error("api.database", path=request.url.path, error=reason)
    is_file = request.app.state.context.settings.is_single_controller
    return error_response(
        503, f"the controller's database is unavailable: {reason}", fix=_DISK_HELP if is_file else _DATABASE_HELP
    )


async def _on_unstorable(_: Request, problem: Exception) -> JSONResponse:
    reason = getattr(problem, "orig", problem)
    return error_response(400, f"the database cannot store this: {reason}", fix="remove these characters")


async def _on_os_error(request: Request, problem: Exception) -> JSONResponse:
    assert isinstance(problem, OSError)
    log.error("api.system", path=request.url.path, error=str(problem))
    reason = problem.strerror or type(problem).__name__
    return error_response(503, f"an operating system call of the controller failed: {reason}", fix=_DISK_HELP)


async def _on_client_gone(request: Request, _: Exception) -> Response:
    log.info("api.client_gone", path=request.url.path)
    return Response(status_code=400)


async def _on_unexpected(_: Request, problem: Exception) -> JSONResponse:
    """A bug. The traceback goes to the controller's log only."""
    fix = "this is a bug in Perdure; `perdure controller logs` shows where it happened"
    return error_response(500, f"something unexpected happened: {type(problem).__name__}", fix=fix)


async def _on_invalid(_: Request, problem: Exception) -> JSONResponse:
    assert isinstance(problem, RequestValidationError)
    first = problem.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    return error_response(
        400, first["msg"], where=where, fix="see docs/reference/api.md for the parameters of this call"
    )
