"""Serves the dashboard's page and its files. They are the same for everybody, and contain no data."""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response

from perdure.controller.api.access.permissions import anybody
from perdure.controller.api.dashboard.assets import PAGE, Asset, load_assets
from perdure.controller.submit.errors import RequestRejected

router = APIRouter(dependencies=[Depends(anybody)])

PATHS = (
    *("/", "/jobs", "/jobs/{job_id:int}", "/launch", "/clusters", "/clusters/{cluster}"),
    *("/services", "/services/{service}", "/schedules", "/sweeps/{sweep_id:int}"),
    *("/market", "/savings", "/nodes", "/controllers", "/users", "/login"),
)
"""The addresses of views. All get the same page, whose script shows the view."""

_CONTENT_SECURITY_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    )
)
_HEADERS = {
    "Content-Security-Policy": _CONTENT_SECURITY_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Vary": "Accept-Encoding",
}
_FOREVER = {"Cache-Control": "public, max-age=31536000, immutable"}
_NEVER = {"Cache-Control": "no-store"}


async def page(request: Request) -> Response:
    """The page of every view."""
    assets = await run_in_threadpool(load_assets)
    if PAGE not in assets:
        raise RequestRejected(
            "this controller was installed without the dashboard",
            fix="run `make dashboard` in the checkout that it was installed from, or install a released package",
            status=404,
        )
    return _response(request, assets[PAGE], _NEVER)


for path in PATHS:
    router.add_api_route(path, page, methods=["GET"])


@router.get("/assets/{name}")
async def asset(request: Request, name: str) -> Response:
    """A script, style sheet or picture of the page."""
    assets = await run_in_threadpool(load_assets)
    if name not in assets or name == PAGE:
        raise RequestRejected("there is no such file", where="name", status=404)
    return _response(request, assets[name], _FOREVER)


def _response(request: Request, asset: Asset, caching: dict[str, str]) -> Response:
    headers, body = {**_HEADERS, **caching}, asset.plain
    if "gzip" in request.headers.get("accept-encoding", ""):
        headers["Content-Encoding"], body = "gzip", asset.compressed
    return Response(body, media_type=asset.media_type, headers=headers)
