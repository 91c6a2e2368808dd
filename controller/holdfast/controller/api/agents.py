"""Routes for nodes: the spec, files by digest, the channel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi import APIRouter, WebSocket
from fastapi.responses import FileResponse, JSONResponse

from holdfast.controller.api.auth import Node, Parts, node_of
from holdfast.controller.api.uploads import file_of
from holdfast.controller.services import Services
from holdfast.controller.submission import Refused

router = APIRouter(prefix="/agent/v1")

_NO_ATTEMPT = {"error": {"message": "this token is worth no attempt", "where": "Authorization", "fix": ""}}


@router.get("/spec")
def spec(place: Node, daemon: Parts) -> dict[str, Any]:
    with daemon.database.connect() as conn:
        found = daemon.specs.spec(conn, *place)
    if found is None:
        raise Refused("there is no such attempt", status=401)
    return found


@router.get("/uploads/{digest}")
def upload(_: Node, daemon: Parts, digest: str) -> FileResponse:
    return _file(daemon.uploads, digest)


@router.get("/artifacts/{digest}")
def artifact(_: Node, daemon: Parts, digest: str) -> FileResponse:
    return _file(daemon.artifacts, digest)


@router.websocket("/channel")
async def channel(socket: WebSocket) -> None:
    daemon: Services = socket.app.state.services
    rank = socket.headers.get("holdfast-rank", "0")
    authorization = socket.headers.get("authorization", "")
    place = node_of(daemon.keyring, authorization, int(rank)) if rank.isdecimal() else None
    if place is None:
        await socket.send_denial_response(JSONResponse(_NO_ATTEMPT, status_code=401))
        return
    await daemon.channel.serve(socket, place)


def _file(folder: Path, digest: str) -> FileResponse:
    path = file_of(folder, digest)
    if not path.exists():
        raise Refused("there is no such file", where="digest", status=404)
    return FileResponse(path, media_type="application/octet-stream")
