"""Routes for nodes: the node spec and files by digest.

`websocket_endpoints` opens the WebSocket of their sessions, and answers most requests for the spec before the router.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi import APIRouter
from fastapi.responses import FileResponse

from perdure.controller.api.auth import Context, Node
from perdure.controller.api.routes.uploads import Digest, validate_digest
from perdure.controller.api.schemas import error_responses, raw_response
from perdure.controller.submit.errors import RequestRejected

# Nodes have no roles, so nothing is 403.
_ERRORS = {status: response for status, response in error_responses(400, 401, 503).items() if status != 403}
router = APIRouter(prefix="/agent/v1", tags=["agents"], responses=_ERRORS)

_FILE = raw_response("application/octet-stream") | error_responses(404)


@router.get("/spec")
def spec(node: Node, context: Context) -> dict[str, Any]:
    """The node spec of docs/reference/agent-protocol.md. Holds the task's secrets."""
    with context.database.connect() as conn:
        node_spec = context.node_specs.build(conn, node.place)
    if node_spec is None:
        raise RequestRejected("there is no such attempt", where="Authorization", status=401)
    return node_spec


@router.get("/uploads/{digest}", response_class=FileResponse, responses=_FILE)
def upload(node: Node, context: Context, digest: Digest) -> FileResponse:
    """An upload that the node's own task refers to; 404 for any other."""
    with context.database.connect() as conn:
        digests = context.node_specs.upload_digests(conn, node.place[0])
    if digest not in digests:
        raise _file_not_found()
    return _file(context.blobs.path(validate_digest(digest)))


@router.get("/artifacts/{digest}", response_class=FileResponse, responses=_FILE)
def artifact(_: Node, context: Context, digest: Digest) -> FileResponse:
    """The agent, or a tool that the agent needs; 404 for any other file."""
    return _file(context.blobs.artifact_path(validate_digest(digest)))


def _file(path: Path | None) -> FileResponse:
    if path is None:
        raise _file_not_found()
    return FileResponse(path, media_type="application/octet-stream")


def _file_not_found() -> RequestRejected:
    return RequestRejected("there is no such file", where="digest", status=404)
