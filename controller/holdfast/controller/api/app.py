"""Builds the FastAPI application over a running daemon."""

from __future__ import annotations

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from sqlalchemy.exc import OperationalError
from starlette.exceptions import HTTPException

from holdfast.controller.api import agents, control, jobs, logs, uploads
from holdfast.controller.services import Services
from holdfast.controller.submission import Refused

log = structlog.get_logger(__name__)

_HELP = "nothing was changed; see that its disk has room (HOLDFAST_HOME), then do it again"


def create_app(services: Services) -> FastAPI:
    """The application. Handlers find the daemon's parts as `request.app.state.services`."""
    app = FastAPI(title="Holdfast", version="1", docs_url=None, redoc_url=None)
    app.state.services = services
    for module in (control, jobs, logs, uploads, agents):
        app.include_router(module.router)
    app.add_exception_handler(Refused, _refused)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _invalid)
    app.add_exception_handler(OperationalError, _database)
    app.add_exception_handler(OSError, _system)
    return app


def error(status: int, message: str, *, where: str | None = None, fix: str = "") -> JSONResponse:
    return JSONResponse({"error": {"message": message, "where": where, "fix": fix}}, status_code=status)


async def _refused(_: Request, refusal: Exception) -> JSONResponse:
    assert isinstance(refusal, Refused)
    return error(refusal.status, refusal.message, where=refusal.where, fix=refusal.fix)


async def _http(_: Request, problem: Exception) -> JSONResponse:
    assert isinstance(problem, HTTPException)
    return error(problem.status_code, str(problem.detail))


async def _database(request: Request, problem: Exception) -> JSONResponse:
    assert isinstance(problem, OperationalError)
    said = str(problem.orig)
    log.error("api.database", path=request.url.path, error=said)
    return error(503, f"the controller's database can not be used now: {said}", fix=_HELP)


async def _system(request: Request, problem: Exception) -> JSONResponse:
    assert isinstance(problem, OSError)
    log.error("api.system", path=request.url.path, error=str(problem))
    said = problem.strerror or type(problem).__name__
    return error(503, f"the controller's computer says: {said}", fix=_HELP)


async def _invalid(_: Request, problem: Exception) -> JSONResponse:
    assert isinstance(problem, RequestValidationError)
    first = problem.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    return error(400, first["msg"], where=where, fix="see docs/api.md for what this call takes")
