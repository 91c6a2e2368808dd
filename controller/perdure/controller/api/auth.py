"""Authentication: users by a token or a browser's sign-in, nodes by a token that is valid for one attempt.

An attempt's token is valid until the attempt is gone. For sessions it is valid `STOP_GRACE_S` longer, so that a machine
that was given up but still runs connects and receives the directive to stop.

`runtime.security.keyring` issues and verifies the tokens themselves (`Keyring.attempt_token`, `verify_attempt_token`).
Routes use the dependencies `Reader`, `Runner`, `Operator` and `Admin`, each of which is a `Caller`, and `Node`. The
WebSocket of a node, which `websocket_endpoints` opens before routing, uses `identify_owned` and `identify`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Header, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from sqlalchemy import bindparam, select

from perdure.controller.api.access.permissions import Caller, authenticate_token, declared
from perdure.controller.api.access.rate_limits import RateLimits
from perdure.controller.api.access.work_slots import WorkSlots
from perdure.controller.api.context import ApiContext
from perdure.controller.api.dashboard.sign_in import BrowserSession, BrowserSessions
from perdure.controller.api.request_precheck import NO_TOKEN, bearer, client_address
from perdure.controller.reconcile.work_items import find_attempt
from perdure.controller.runtime.keys import STOP_GRACE_S
from perdure.controller.store.access.roles import AccessRight
from perdure.controller.store.records.agent_connections import Place
from perdure.controller.store.records.jobs import Attempt, Task
from perdure.controller.submit.errors import RequestRejected
from perdure.recovery.statuses import AttemptState

_USER = HTTPBearer(
    auto_error=False, scheme_name="user", description="The token in PERDURE_HOME/token, or that of a named user"
)
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


IDENTIFIED = "perdure.identified"


@dataclass
class Identified:
    """What was found out about a request before it came to the router, at `IDENTIFIED` of its scope.

    The router does not do it again: each refusal of a token is a row of the audit log, and each call counts.
    """

    caller: Caller | None
    is_counted: bool = False  # whether the call counts for the caller's limit already
    refusal: Exception | None = None  # the limit was reached
    failure: Exception | None = None  # what the computation of the answer has raised


async def api_context(request: Request) -> ApiContext:
    """The context of the request. It is async, so that it runs on the event loop and not in a worker thread."""
    context: ApiContext = request.app.state.context
    return context


def identify_user(
    context: ApiContext, sessions: BrowserSessions, headers: Mapping[str, str], method: str, address: str
) -> Caller | None:
    """The caller of a request with a token, or of a browser that was signed in; None for any other. Uses no database.

    `headers`: by lower-case names.
    """
    if "authorization" in headers:
        return authenticate_token(context, bearer(headers["authorization"]), address)
    session = sessions.find(headers, method)
    return None if session is None else sessions.caller(session, address)


async def browser_session(request: Request) -> BrowserSession | None:
    """The session of a request of a browser that is signed in; None for any other request."""
    sessions: BrowserSessions = request.app.state.browser_sessions
    if "authorization" in request.headers or sessions.find(request.headers, request.method) is None:
        return None
    await sessions.refresh()
    return sessions.find(request.headers, request.method)


async def require_user(
    context: Annotated[ApiContext, Depends(api_context)],
    request: Request,
    _credentials: Annotated[Credentials, Depends(_USER)],
    session: Annotated[BrowserSession | None, Depends(browser_session)],
) -> Caller:
    """The caller, who may do nothing yet: routes ask for a permission. Raises RequestRejected (401, or 429)."""
    sessions: BrowserSessions = request.app.state.browser_sessions
    address = address_of(request)
    identified: Identified | None = request.scope.get(IDENTIFIED)
    if identified is not None:
        if identified.refusal is not None:
            raise identified.refusal
        caller = identified.caller
    elif session is not None:
        caller = sessions.caller(session, address)
    else:
        caller = authenticate_token(context, bearer(request.headers.get("authorization", "")), address)
    if caller is None:
        raise RequestRejected(**NO_TOKEN, status=401)
    if caller.token_id and not (identified is not None and identified.is_counted):
        limits: RateLimits = request.app.state.rate_limits
        limits.count_call(caller.name)
    return caller


def address_of(request: Request) -> str:
    """The address that a request comes from, which may be a proxy's."""
    return client_address(request.scope)


def allow(permission: AccessRight) -> Callable[..., Awaitable[Caller]]:
    """A dependency: the caller, who has the permission. It raises RequestRejected: 401, or 403 without it."""

    @declared(f"permission: {permission.name}")
    async def allowed(caller: Annotated[Caller, Depends(require_user)], request: Request) -> Caller:
        caller.require(permission, f"{request.method} {request.scope['route'].path}")
        return caller

    return allowed


@declared("node")
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


@declared("node")
def require_boot_token(
    context: Annotated[ApiContext, Depends(api_context)],
    credentials: Annotated[Credentials, Depends(_NODE)],
    perdure_rank: Annotated[str, Header(description="The node's rank, 0 if not given")] = "0",
) -> NodeIdentity:
    """The machine that boots with this token; its attempt is live. Raises RequestRejected (401)."""
    token = credentials.credentials if credentials else ""
    key = context.keyring.verify_boot_token(token.strip())
    identity = None if key is None else identify(context, context.keyring.attempt_token(key), perdure_rank)
    if identity is None or not identity.is_live:
        raise RequestRejected("this is no boot token of a live attempt", where="Authorization", status=401)
    return identity


@declared("node")
def require_node_or_boot_token(
    context: Annotated[ApiContext, Depends(api_context)],
    credentials: Annotated[Credentials, Depends(_NODE)],
    perdure_rank: Annotated[str, Header(description="The node's rank, 0 if not given")] = "0",
) -> NodeIdentity:
    """A node, or a machine that boots: for files that are no secret of the job. Raises RequestRejected (401)."""
    token = credentials.credentials if credentials else ""
    if context.keyring.verify_boot_token(token.strip()) is not None:
        return require_boot_token(context, credentials, perdure_rank)
    return require_node(context, credentials, perdure_rank)


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


def work_slots(request: Request) -> WorkSlots:
    """The slots of requests that compute for long."""
    slots: WorkSlots = request.app.state.work_slots
    return slots


Reader = Annotated[Caller, Depends(allow(AccessRight.READ))]
Runner = Annotated[Caller, Depends(allow(AccessRight.RUN))]
Operator = Annotated[Caller, Depends(allow(AccessRight.OPERATE))]
Admin = Annotated[Caller, Depends(allow(AccessRight.ADMINISTER))]
Session = Annotated[BrowserSession | None, Depends(browser_session)]
Node = Annotated[NodeIdentity, Depends(require_node)]
BootingMachine = Annotated[NodeIdentity, Depends(require_boot_token)]
AnyMachine = Annotated[NodeIdentity, Depends(require_node_or_boot_token)]
Slots = Annotated[WorkSlots, Depends(work_slots)]
Context = Annotated[ApiContext, Depends(api_context)]
