"""Authentication: users by the user token or a browser's sign-in, nodes by a token that is valid for one attempt.

An attempt's token is valid until the attempt is gone. For sessions it is valid `STOP_GRACE_S` longer, so that a machine
that was given up but still runs connects and receives the directive to stop.

`runtime.security.keyring` issues and verifies the tokens themselves (`Keyring.attempt_token`, `verify_attempt_token`).
Routes use the dependencies `User` and `Node`. The WebSocket of a node, which `websocket_endpoints` opens before
routing, uses `identify_owned` and `identify`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Header, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from sqlalchemy import bindparam, select

from perdure.controller.api.context import ApiContext
from perdure.controller.api.dashboard.sign_in import BrowserSession, BrowserSessions
from perdure.controller.api.gate import NO_TOKEN, bearer
from perdure.controller.reconcile.work_items import find_attempt
from perdure.controller.runtime.keys import STOP_GRACE_S
from perdure.controller.store.records.agent_connections import Place
from perdure.controller.store.records.jobs import Attempt, Task
from perdure.controller.submit.errors import RequestRejected
from perdure.recovery.statuses import AttemptState

_USER = HTTPBearer(auto_error=False, scheme_name="user", description="The user token: PERDURE_HOME/token")
_NODE = HTTPBearer(auto_error=False, scheme_name="attempt", description="A token that is valid for one attempt")
_ATTEMPT = (
    select(Attempt.c.state, Attempt.c.gone_at, Task.c.num_nodes)
    .join(Task, (Task.c.job_id == Attempt.c.job_id) & (Task.c.index == Attempt.c.task_index))
    .where(
        Attempt.c.job_id == bindparam("job_id"),
        Attempt.c.task_index == bindparam("index"),
        Attempt.c.generation == bindparam("generation"),
    )
)
Credentials = HTTPAuthorizationCredentials | None


@dataclass(frozen=True)
class NodeIdentity:
    """An authenticated node."""

    place: Place
    is_live: bool  # whether its attempt is not gone


async def api_context(request: Request) -> ApiContext:
    """The context of the request. It is async, so that it runs on the event loop and not in a worker thread."""
    context: ApiContext = request.app.state.context
    return context


def is_user(context: ApiContext, sessions: BrowserSessions, headers: Mapping[str, str], method: str) -> bool:
    """Whether a request has the user token, or comes from a browser that was signed in. Uses no database."""
    if "authorization" in headers:
        return context.keyring.is_user_token(bearer(headers["authorization"]))
    return sessions.find(headers, method) is not None


async def browser_session(request: Request) -> BrowserSession | None:
    """The session of a request of a browser that is signed in; None for any other request."""
    sessions: BrowserSessions = request.app.state.browser_sessions
    if "authorization" in request.headers or sessions.find(request.headers, request.method) is None:
        return None
    await sessions.refresh()
    return sessions.find(request.headers, request.method)


async def require_user(
    context: Annotated[ApiContext, Depends(api_context)],
    credentials: Annotated[Credentials, Depends(_USER)],
    session: Annotated[BrowserSession | None, Depends(browser_session)],
) -> ApiContext:
    """The context, for a user. Raises RequestRejected (401)."""
    has_token = credentials is not None and context.keyring.is_user_token(credentials.credentials.strip())
    if not has_token and session is None:
        raise RequestRejected(**NO_TOKEN, status=401)
    return context


def require_node(
    context: Annotated[ApiContext, Depends(api_context)],
    credentials: Annotated[Credentials, Depends(_NODE)],
    perdure_rank: Annotated[str, Header(description="The node's rank, 0 if not given")] = "0",
) -> NodeIdentity:
    """The node that sent the request; its attempt is live. Raises RequestRejected (401)."""
    identity = identify(context, credentials.credentials if credentials else "", perdure_rank)
    if identity is None or not identity.is_live:
        raise RequestRejected(
            "this token belongs to no live attempt, or the attempt has no node of this rank",
            where="Authorization",
            status=401,
        )
    return identity


def identify_owned(context: ApiContext, token: str, rank: str) -> NodeIdentity | None:
    """`identify` without the database, for a live attempt of a job that this daemon owns; None for any other."""
    if (place := _parse_claims(context, token, rank)) is None:
        return None
    key, number = place
    attempt = find_attempt(context.inbox.view(key[0]), key)
    if attempt is None or attempt.state is AttemptState.GONE or number >= len(attempt.nodes):
        return None
    return NodeIdentity(place, is_live=True)


def identify(context: ApiContext, token: str, rank: str) -> NodeIdentity | None:
    """Authenticate a node. Returns None for an invalid or expired token, or a rank that its attempt does not have."""
    if (place := _parse_claims(context, token, rank)) is None:
        return None
    key, number = place
    with context.database.connect() as conn:
        row = conn.execute(_ATTEMPT, {"job_id": key[0], "index": key[1], "generation": key[2]}).first()
    if row is None:
        context.unknown_machines.name(key)
        return None
    if number >= row.num_nodes:
        return None
    is_live = row.state != AttemptState.GONE.value
    if not is_live and context.clock.now() >= (row.gone_at or 0.0) + STOP_GRACE_S * context.time_scale.speed:
        return None
    return NodeIdentity(place, is_live)


def _parse_claims(context: ApiContext, token: str, rank: str) -> Place | None:
    """The attempt and the rank that the credentials name; None if they are invalid."""
    key = context.keyring.verify_attempt_token(token.strip())
    if key is None and (lost := context.keyring.signed_attempt(token.strip())) is not None:
        context.unknown_machines.name(lost)
    if key is None or not (rank.isascii() and rank.isdecimal() and len(rank) < 10):
        return None
    return key, int(rank)


User = Annotated[ApiContext, Depends(require_user)]
Session = Annotated[BrowserSession | None, Depends(browser_session)]
Node = Annotated[NodeIdentity, Depends(require_node)]
Context = Annotated[ApiContext, Depends(api_context)]
