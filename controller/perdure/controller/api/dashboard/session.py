"""Routes that sign browsers in and out. `sign_in` explains the code, the cookie and the page value."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel, ConfigDict, Field

from perdure.controller.api.access.permissions import Caller, anybody, command_line_token
from perdure.controller.api.access.rate_limits import RateLimits
from perdure.controller.api.auth import Reader, Session, address_of
from perdure.controller.api.dashboard import responses
from perdure.controller.api.dashboard.sign_in import CODE_S, MAX_CODE_CHARS, BrowserSession, BrowserSessions
from perdure.controller.api.request_precheck import SIGN_IN
from perdure.controller.api.schemas import error_responses, json_response
from perdure.controller.store.access import audit
from perdure.controller.store.access.audit import Actor
from perdure.controller.store.queries.job_listing import iso
from perdure.controller.submit.errors import RequestRejected
from perdure.sdk.connection import api_types

router = APIRouter(prefix=SIGN_IN, tags=["session"], responses=error_responses(400, 401, 503))


class SignInBody(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    code: str = Field(max_length=MAX_CODE_CHARS)


class CodeOwnerBody(SignInBody):
    """`has_asked`: whether the page has sent this browser to the provider, as the storage of its origin says."""

    has_asked: bool = False


@router.post(
    "/codes",
    status_code=201,
    responses=json_response(api_types.SignInCode, status=201) | error_responses(403),
)
def create_code(caller: Reader, request: Request) -> dict[str, Any]:
    """A code that signs one browser in as the caller, once, within a minute. Put it into the fragment of the address of
    the dashboard (`/#login=CODE`), which browsers send to no server. A command line that was signed in by a browser
    gets none: the browser could sign it in again, for ever."""
    if caller.is_command_line:
        raise RequestRejected(
            "a command line that was signed in by a browser signs no browser in",
            where="Authorization",
            fix="open the dashboard's address, and sign in there",
            status=403,
        )
    with caller.context.database.begin() as conn:
        return {"code": _sessions(request).create_code(conn, caller.token_id), "valid_s": CODE_S}


@router.post(
    "/codes/owner", responses=json_response(responses.CodeOwner) | error_responses(429), dependencies=[Depends(anybody)]
)
async def show_code_owner(request: Request, body: CodeOwnerBody) -> dict[str, Any]:
    """Whom a code signs in, which it still does afterwards. `is_certain`: the page need not ask whether to sign in as
    this user, because the controller has no others, or because this browser has asked for the code. Both its cookie and
    the page have to say that: a server on another port of this host can set a cookie."""
    sessions = _sessions(request)
    limits: RateLimits = request.app.state.rate_limits
    limits.check_sign_in(address_of(request))
    owner = await run_in_threadpool(_owner, sessions, body.code)
    if owner is None:
        limits.count_failed_sign_in(address_of(request))
        raise _wrong_code()
    has_asked = body.has_asked and sessions.has_asked_for(body.code, request.cookies)
    return {"user": owner.name, "is_certain": has_asked or not sessions.context.access.has_users}


@router.post(
    "",
    status_code=201,
    responses=json_response(responses.SignedIn, status=201) | error_responses(429),
    dependencies=[Depends(anybody)],
)
async def sign_in(request: Request, response: Response, body: SignInBody) -> dict[str, Any]:
    """Trade a code for a cookie, which is valid together with the header `Perdure-CSRF`: its value is `csrf`."""
    sessions = _sessions(request)
    if not sessions.is_same_origin(request.headers):
        raise RequestRejected("this request comes from another site", where="Origin", status=401)
    limits: RateLimits = request.app.state.rate_limits
    limits.check_sign_in(address_of(request))
    session = await run_in_threadpool(_redeem, sessions, body.code, address_of(request))
    if session is None:
        limits.count_failed_sign_in(address_of(request))
        sessions.context.access.deny(Actor("", address=address_of(request)), "session.sign_in", reason="wrong code")
        raise _wrong_code()
    response.headers["Set-Cookie"] = sessions.set_cookie(session)
    return {"csrf": sessions.page_value(session), **_times(session)}


class CommandLineBody(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    challenge: str = Field(pattern="^[0-9a-f]{64}$")


class CommandLineCode(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    code: str = Field(max_length=MAX_CODE_CHARS)
    secret: str = Field(max_length=MAX_CODE_CHARS)


@router.post(
    "/command-line",
    status_code=201,
    responses=json_response(api_types.SignInCode, status=201) | error_responses(409),
)
def sign_in_command_line(caller: Reader, request: Request, session: Session, body: CommandLineBody) -> dict[str, Any]:
    """A code with which a command line signs in as the user of this browser, once, within a minute. `challenge`: the
    SHA-256 of its secret, in hexadecimal digits."""
    if session is None:
        raise RequestRejected(
            "only a browser that is signed in may sign a command line in", fix="run: perdure login", status=409
        )
    if not caller.token_id:
        raise RequestRejected(
            "the controller's own token signs nobody in",
            fix="create a user and a token: perdure users create NAME; perdure tokens create NAME",
            status=409,
        )
    sessions = _sessions(request)
    with caller.context.database.begin() as conn:
        code = sessions.create_command_line_code(conn, caller.token_id, body.challenge)
        audit.record(conn, caller.deed("session.command_line"), caller.context.clock.now())
    return {"code": code, "valid_s": CODE_S}


@router.post(
    "/command-line/token",
    status_code=201,
    responses=json_response(responses.CommandLineToken, status=201) | error_responses(429),
    dependencies=[Depends(anybody)],
)
async def redeem_command_line_code(request: Request, body: CommandLineCode) -> dict[str, Any]:
    """Trade a code for a token, with the secret of the command line that asked for it. It is valid for 12 hours, and no
    longer than the token that the browser is signed in with."""
    sessions = _sessions(request)
    limits: RateLimits = request.app.state.rate_limits
    limits.check_sign_in(address_of(request))
    redeemed = await run_in_threadpool(_redeem_command_line, sessions, body)
    if redeemed is None:
        limits.count_failed_sign_in(address_of(request))
        actor = Actor("", address=address_of(request))
        sessions.context.access.deny(actor, "session.command_line", reason="wrong code, or wrong secret")
        raise RequestRejected(
            "this code was used before, is older than a minute, or is another command's",
            where="code",
            fix="run `perdure login` again",
            status=401,
        )
    caller, until = redeemed
    token = command_line_token(sessions.context, caller.token_id, until)
    return {"token": token, "user": caller.name, "expires_at": iso(until)}


@router.get("", responses=json_response(responses.BrowserSignIn))
async def show(_: Reader, request: Request, response: Response, session: Session) -> dict[str, Any]:
    """The browser's session, which this call prolongs; without times for a caller that uses the token."""
    if session is None:
        return {"signed_in_at": None, "valid_until": None}
    renewed = _sessions(request).renew(session)
    response.headers["Set-Cookie"] = _sessions(request).set_cookie(renewed)
    return _times(renewed)


@router.delete("", responses=json_response(responses.BrowserSignIn))
async def sign_out(caller: Reader, request: Request, response: Response, session: Session) -> dict[str, Any]:
    """End the browser's session. A copy of its cookie is worthless from then on, within 5 s at other controllers."""
    if session is not None:
        await run_in_threadpool(_end, _sessions(request), session, caller)
    response.headers["Set-Cookie"] = _sessions(request).clear_cookie()
    return {"signed_in_at": None, "valid_until": None}


def _wrong_code() -> RequestRejected:
    message = "this sign-in link was used before, or is older than a minute"
    return RequestRejected(message, where="code", fix="run `perdure dashboard` again", status=401)


def _owner(sessions: BrowserSessions, code: str) -> Caller | None:
    with sessions.context.database.connect() as conn:
        return sessions.owner(conn, code)


def _redeem_command_line(sessions: BrowserSessions, body: CommandLineCode) -> tuple[Caller, float] | None:
    with sessions.context.database.begin() as conn:
        return sessions.redeem_command_line_code(conn, body.code, body.secret)


def _redeem(sessions: BrowserSessions, code: str, address: str) -> BrowserSession | None:
    with sessions.context.database.begin() as conn:
        session = sessions.redeem(conn, code)
        if session is not None and (caller := sessions.caller(session, address)) is not None:
            audit.record(conn, caller.deed("session.sign_in"), sessions.context.clock.now())
        return session


def _end(sessions: BrowserSessions, session: BrowserSession, caller: Caller) -> None:
    with sessions.context.database.begin() as conn:
        sessions.end(conn, session)
        audit.record(conn, caller.deed("session.sign_out"), sessions.context.clock.now())


def _sessions(request: Request) -> BrowserSessions:
    sessions: BrowserSessions = request.app.state.browser_sessions
    return sessions


def _times(session: BrowserSession) -> dict[str, Any]:
    return {"signed_in_at": iso(session.signed_in_at), "valid_until": iso(session.valid_until)}
