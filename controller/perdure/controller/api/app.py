"""Builds the FastAPI application over a running daemon.

Every refusal and every failure is one JSON object: what is wrong, where, what to do. `GET /openapi.json` describes all.
"""

from __future__ import annotations

from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from fastapi.responses import JSONResponse, Response
from sqlalchemy.exc import DataError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp

from perdure.controller.api import agents, control, jobs, logs, software, uploads
from perdure.controller.api.gate import Gate
from perdure.controller.refusing import Refused
from perdure.controller.services import Services
from perdure.sdk.problems import printable

log = structlog.get_logger(__name__)

_HELP = "nothing was changed; see that its disk has room (PERDURE_HOME), then do it again"
_DATABASE_HELP = "do it again when it answers; what was begun was done wholly, or not at all"


def application(services: Services) -> ASGIApp:
    """All that the daemon serves: the API, and what nodes ask most."""
    return agents.Nodes(create_app(services), services, services.settings.hosts)


def create_app(services: Services) -> FastAPI:
    """The API. Handlers find the daemon's parts as `request.app.state.services`."""
    app = FastAPI(title="Perdure", version="1", docs_url=None, redoc_url=None)
    app.state.services = services
    app.add_middleware(Gate, hosts=services.settings.hosts, is_user=services.keyring.is_user)
    for module in (control, software, jobs, logs, uploads, agents):
        app.include_router(module.router)
    app.add_exception_handler(Refused, _refused)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(OperationalError, _database)
    app.add_exception_handler(PoolTimeout, _database)
    app.add_exception_handler(DataError, _unstorable)
    app.add_exception_handler(UnicodeEncodeError, _unstorable)
    app.add_exception_handler(OSError, _system)
    app.add_exception_handler(ClientDisconnect, _nobody_listens)
    app.add_exception_handler(Exception, _unexpected)
    app.openapi = lambda: _described(app)  # type: ignore[method-assign]  # FastAPI's own way to change it
    return app


def error(
    status: int, message: str, *, where: str | None = None, fix: str = "", headers: dict[str, str] | None = None
) -> JSONResponse:
    told = {"message": printable(message), "where": where and printable(where), "fix": printable(fix)}
    return JSONResponse({"error": told}, status_code=status, headers=headers)


def _described(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document, without the 422 that FastAPI believes in: bad input is answered with 400 here."""
    if app.openapi_schema is None:
        app.openapi_schema = get_openapi(title=app.title, version=app.version, routes=app.routes)
        for path in app.openapi_schema["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
        for unused in ("HTTPValidationError", "ValidationError"):
            app.openapi_schema["components"]["schemas"].pop(unused, None)
    return app.openapi_schema


async def _refused(_: Request, refusal: Exception) -> JSONResponse:
    assert isinstance(refusal, Refused)
    headers = None if refusal.retry_after_s is None else {"Retry-After": str(refusal.retry_after_s)}
    return error(refusal.status, refusal.message, where=refusal.where, fix=refusal.fix, headers=headers)


async def _http(_: Request, problem: Exception) -> JSONResponse:
    assert isinstance(problem, HTTPException)
    return error(problem.status_code, str(problem.detail), headers=dict(problem.headers or {}))


async def _database(request: Request, problem: Exception) -> JSONResponse:
    said = str(getattr(problem, "orig", problem)).strip()
    log.error("api.database", path=request.url.path, error=said)
    is_file = request.app.state.services.settings.is_alone
    return error(
        503, f"the controller's database can not be used now: {said}", fix=_HELP if is_file else _DATABASE_HELP
    )


async def _unstorable(_: Request, problem: Exception) -> JSONResponse:
    said = getattr(problem, "orig", problem)
    return error(400, f"the database can not keep this: {said}", fix="leave out such characters")


async def _system(request: Request, problem: Exception) -> JSONResponse:
    assert isinstance(problem, OSError)
    log.error("api.system", path=request.url.path, error=str(problem))
    said = problem.strerror or type(problem).__name__
    return error(503, f"the controller's computer says: {said}", fix=_HELP)


async def _nobody_listens(request: Request, _: Exception) -> Response:
    log.info("api.client_gone", path=request.url.path)
    return Response(status_code=400)


async def _unexpected(_: Request, problem: Exception) -> JSONResponse:
    """A fault of ours. Where it happened goes to the controller's log, and to nobody else."""
    fix = "this is a fault of perdure's; `perdure controller logs` shows where it happened"
    return error(500, f"something unexpected happened: {type(problem).__name__}", fix=fix)


async def _invalid(_: Request, problem: Exception) -> JSONResponse:
    assert isinstance(problem, RequestValidationError)
    first = problem.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    return error(400, first["msg"], where=where, fix="see docs/api.md for what this call takes")
