"""The route of the metrics, which Prometheus scrapes."""

from __future__ import annotations

import hmac
import ipaddress
from typing import Annotated

import structlog
from fastapi import APIRouter, Depends, Header, Request, Response

from perdure.controller.api.access.permissions import authenticate_token, declared
from perdure.controller.api.auth import Context
from perdure.controller.api.context import ApiContext
from perdure.controller.api.request_precheck import bearer
from perdure.controller.api.schemas import error_responses
from perdure.controller.runtime.config.listen import MetricsAccess
from perdure.controller.runtime.metrics.metric_registry import OPENMETRICS_TYPE, TEXT_TYPE
from perdure.controller.submit.errors import RequestRejected

log = structlog.get_logger(__name__)

router = APIRouter(tags=["controller"])


@declared("a scraper, or permission: READ")
async def require_scraper(request: Request, context: Context) -> ApiContext:
    """The context, for a user, or for a scraper that `listen.metrics` admits. Raises RequestRejected (401)."""
    token = bearer(request.headers.get("authorization", ""))
    access = context.settings.listen.metrics
    address = request.client.host if request.client else ""
    if _is_scraper(access, token, address) or authenticate_token(context, token, address) is not None:
        return context
    raise RequestRejected(
        "the token is missing or wrong",
        where="Authorization",
        fix="send the token in listen.metrics.token_file, or a user token, as `Authorization: Bearer <token>`",
        status=401,
    )


def _is_scraper(access: MetricsAccess, token: str, address: str) -> bool:
    if access.open_on_loopback and _is_loopback(address):
        return True
    if access.token_file is None or not token:
        return False
    try:
        expected = access.token_file.read_text().strip()
    except (OSError, ValueError) as error:
        log.warning("metrics.token_unreadable", path=str(access.token_file), error=str(error))
        return False
    return bool(expected) and hmac.compare_digest(expected.encode(), token.encode())


def _is_loopback(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {}, "application/openmetrics-text": {}}}, **error_responses(401)},
)
async def metrics(
    context: Annotated[ApiContext, Depends(require_scraper)],
    accept: Annotated[str, Header(description="application/openmetrics-text selects OpenMetrics 1.0")] = "",
) -> Response:
    """The controller's metrics, in the text format of Prometheus or in OpenMetrics. They name no job and no user."""
    openmetrics = "application/openmetrics-text" in accept
    text = context.metrics.registry.render(openmetrics=openmetrics)
    return Response(text, media_type=OPENMETRICS_TYPE if openmetrics else TEXT_TYPE)
