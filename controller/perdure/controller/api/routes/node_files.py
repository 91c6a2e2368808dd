"""Routes for nodes: the node spec, files by digest, and what became of a home that had to be saved.

`websocket_endpoints` opens the WebSocket of their sessions, and answers most requests for the spec before the router.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Annotated, Any

import structlog
from fastapi import APIRouter
from fastapi.responses import FileResponse
from pydantic import BaseModel, Field

from perdure.controller.api.auth import AnyMachine, BootingMachine, Context, Node
from perdure.controller.api.context import ApiContext
from perdure.controller.api.routes.uploads import Digest, validate_digest
from perdure.controller.api.schemas import error_responses, raw_response
from perdure.controller.reconcile.work_items import JobEvent
from perdure.controller.store.clusters import home_rescues
from perdure.controller.store.records.agent_connections import Place, trade_boot_token
from perdure.controller.submit.errors import RequestRejected
from perdure.recovery import events
from perdure.recovery.actions import TimelineEntry

# Nodes have no roles, so nothing is 403.
_ERRORS = {status: response for status, response in error_responses(400, 401, 503).items() if status != 403}
router = APIRouter(prefix="/agent/v1", tags=["agents"], responses=_ERRORS)

DRAIN_S = 30.0
_REUSED = (
    "the token with which the machine booted was used twice: somebody may have read the machine's user data, and with "
    "it the job's secrets; the machine is replaced. Change the secrets"
)
_REPLACED = "the machine will be replaced"
log = structlog.get_logger()

_FILE = raw_response("application/octet-stream") | error_responses(404)


class TokenTrade(BaseModel):
    """`nonce`: random, made by the agent and repeated in all of its calls."""

    nonce: Annotated[str, Field(pattern=r"^[0-9a-f]{32,128}$")]


class SavedHome(BaseModel):
    """`problem`: why the home could not be saved; "" if it was."""

    problem: Annotated[str, Field(max_length=2000)] = ""


class NodeToken(BaseModel):
    """The token of an attempt."""

    token: str


@router.get("/spec")
def spec(node: Node, context: Context) -> dict[str, Any]:
    """The node spec of docs/reference/agent-protocol.md. Holds the task's secrets."""
    with context.database.connect() as conn:
        node_spec = context.node_specs.build(conn, node.place)
    if node_spec is None:
        raise RequestRejected("there is no such attempt", where="Authorization", status=401)
    return node_spec


@router.post("/token", responses=error_responses(403))
def trade_token(machine: BootingMachine, context: Context, trade: TokenTrade) -> NodeToken:
    """The attempt's token, for the boot token of one of its machines: once.

    A call may be repeated with the same nonce. One with another nonce is an alarm: somebody else has read what the
    machine boots with. The machine is then replaced.
    """
    nonce = hashlib.sha256(trade.nonce.encode()).hexdigest()
    with context.database.begin() as conn:
        is_first = trade_boot_token(conn, machine.place, nonce)
    if is_first:
        return NodeToken(token=context.keyring.attempt_token(machine.place[0]))
    _raise_alarm(context, machine.place)
    raise RequestRejected(
        "this boot token has been traded by another machine", where="Authorization", status=403, fix=_REPLACED
    )


@router.post("/home", status_code=204)
def report_home(node: Node, context: Context, result: SavedHome) -> None:
    """What has become of the home that the node spec had asked to save (`rescue`). Repeating it changes nothing."""
    with context.database.begin() as conn:
        home_rescues.report(conn, node.place, result.problem, context.clock.now())


def _raise_alarm(context: ApiContext, place: Place) -> None:
    (job_id, task_index, generation), rank = place
    log.error("agent.boot_token_reused", job=job_id, task=task_index, generation=generation, rank=rank)
    entry = TimelineEntry("node.boot_token_reused", task_index, generation, rank, message=_REUSED)
    context.inbox.submit(JobEvent(job_id, notes=(entry,)))
    # Whoever has the token keeps it until the attempt is gone. A drain ends it, and saves what the job has.
    deadline = context.clock.now() + DRAIN_S * context.time_scale.speed
    context.inbox.post(job_id, events.PreemptionNotice(task_index, generation, rank, deadline))


@router.get("/uploads/{digest}", response_class=FileResponse, responses=_FILE)
def upload(node: Node, context: Context, digest: Digest) -> FileResponse:
    """An upload that the node's own task refers to; 404 for any other."""
    with context.database.connect() as conn:
        digests = context.node_specs.upload_digests(conn, node.place[0])
    if digest not in digests:
        raise _file_not_found()
    return _file(context.blobs.path(validate_digest(digest)))


@router.get("/artifacts/{digest}", response_class=FileResponse, responses=_FILE)
def artifact(_: AnyMachine, context: Context, digest: Digest) -> FileResponse:
    """The agent, or a tool that the agent needs; 404 for any other file."""
    return _file(context.blobs.artifact_path(validate_digest(digest)))


def _file(path: Path | None) -> FileResponse:
    if path is None:
        raise _file_not_found()
    return FileResponse(path, media_type="application/octet-stream")


def _file_not_found() -> RequestRejected:
    return RequestRejected("there is no such file", where="digest", status=404)
