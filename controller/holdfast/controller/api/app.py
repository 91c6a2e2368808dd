"""Builds the FastAPI application over a running daemon."""

from __future__ import annotations

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from holdfast.controller.api import agents, control, jobs, logs, uploads
from holdfast.controller.services import Services
from holdfast.controller.submission import Refused


def create_app(services: Services) -> FastAPI:
    """The application. Handlers find the daemon's parts as `request.app.state.services`."""
    app = FastAPI(title="Holdfast", version="1", docs_url=None, redoc_url=None)
    app.state.services = services
    for module in (control, jobs, logs, uploads, agents):
        app.include_router(module.router)
    app.add_exception_handler(Refused, _refused)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _invalid)
    return app


def error(status: int, message: str, *, where: str | None = None, fix: str = "") -> JSONResponse:
    return JSONResponse({"error": {"message": message, "where": where, "fix": fix}}, status_code=status)


async def _refused(_: Request, refusal: Exception) -> JSONResponse:
    assert isinstance(refusal, Refused)
    return error(refusal.status, refusal.message, where=refusal.where, fix=refusal.fix)


async def _http(_: Request, problem: Exception) -> JSONResponse:
    assert isinstance(problem, HTTPException)
    return error(problem.status_code, str(problem.detail))


async def _invalid(_: Request, problem: Exception) -> JSONResponse:
    assert isinstance(problem, RequestValidationError)
    first = problem.errors()[0]
    where = ".".join(str(part) for part in first["loc"])
    return error(400, first["msg"], where=where, fix="see docs/api.md for what this call takes")
