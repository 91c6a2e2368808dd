"""The route by which a controller on a machine of its own gets another Perdure (`perdure controller upgrade`)."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool

from perdure.controller.api.auth import User
from perdure.controller.api.schemas import answer, refusals
from perdure.controller.refusing import Refused
from perdure.sdk import records

router = APIRouter(tags=["controller"])

_PACK = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}


@router.put(
    "/api/v1/controller/software",
    responses=answer(records.Installed) | refusals(400, 401, 409, 413, 503),
    openapi_extra={"requestBody": {"required": True, "content": _PACK}},
)
async def put(daemon: User, request: Request) -> dict[str, Any]:
    """Install a pack and start again with it. Running jobs go on. What can not be installed changes nothing."""
    from perdure.controller.hosting import upgrading  # seldom needed, and 2 MiB
    from perdure.controller.hosting.caretaker import CannotInstall

    software = upgrading.software_folder()
    if software is None:
        raise Refused(
            "this controller was not brought up by `perdure controller up`",
            fix="upgrade it as it was installed, and start it again",
            status=409,
        )
    body = await request.body()
    try:
        said = await run_in_threadpool(upgrading.take, daemon.settings.home, software, body)
    except CannotInstall as error:
        raise Refused(str(error), fix="send what `perdure controller upgrade` sends") from error
    if said["is_new"]:
        daemon.request_stop()
    return said
