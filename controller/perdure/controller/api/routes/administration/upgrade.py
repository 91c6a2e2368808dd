"""The route that upgrades a controller on a machine of its own (`perdure controller upgrade`)."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool

from perdure.controller.api.access.audit_log import record
from perdure.controller.api.auth import Admin
from perdure.controller.api.schemas import error_responses, json_response
from perdure.controller.submit.errors import RequestRejected
from perdure.sdk.connection import api_types

router = APIRouter(tags=["controller"])

_BUNDLE = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}


@router.put(
    "/api/v1/controller/software",
    responses=json_response(api_types.Installed) | error_responses(400, 401, 409, 413, 503),
    openapi_extra={"requestBody": {"required": True, "content": _BUNDLE}},
)
async def upgrade_software(caller: Admin, request: Request) -> dict[str, Any]:
    """Install a software bundle and restart with it. Running jobs go on. A bundle that is rejected changes nothing."""
    from perdure.controller.hosting import upgrade  # rarely needed, and 2 MiB of memory
    from perdure.controller.hosting.installer import CannotInstall

    context, software = caller.context, upgrade.software_folder()
    if software is None:
        raise RequestRejected(
            "this controller was not created by `perdure controller up`",
            fix="upgrade it the way it was installed, and restart it",
            status=409,
        )
    body = await request.body()
    await run_in_threadpool(record, caller, "controller.upgrade")
    try:
        result = await run_in_threadpool(upgrade.install_upgrade, context.settings.home, software, body)
    except CannotInstall as error:
        raise RequestRejected(str(error), fix="send the bundle that `perdure controller upgrade` builds") from error
    if result["is_new"]:
        context.request_stop()
    return result
