"""Routes that sign a browser in by a provider of OpenID Connect.

`GET /oidc` sends the browser to the provider, which sends it back to `/oidc/callback` with a code. The state is a
random text that the browser keeps in a cookie; nonce and PKCE's verifier are derived from it by the controllers' key,
so nothing is stored, and any controller can answer. In the end the browser gets a one-time code in the fragment of the
address, as from `perdure dashboard`.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from typing import Annotated, Any

import structlog
from fastapi import APIRouter, Depends, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import RedirectResponse
from sqlalchemy.exc import IntegrityError

from perdure.controller.api.access.oidc.membership import NotAMember, member_of
from perdure.controller.api.access.oidc.provider import OidcProvider, ProviderFailed
from perdure.controller.api.access.permissions import anybody
from perdure.controller.api.access.rate_limits import RateLimits
from perdure.controller.api.auth import address_of
from perdure.controller.api.dashboard import responses
from perdure.controller.api.dashboard.sign_in import BrowserSessions
from perdure.controller.api.request_precheck import SIGN_IN
from perdure.controller.api.schemas import error_responses, json_response
from perdure.controller.store.access import audit, users
from perdure.controller.store.access.audit import Actor, Deed
from perdure.controller.store.access.roles import Role
from perdure.controller.submit.errors import RequestRejected

router = APIRouter(
    prefix=f"{SIGN_IN}/oidc",
    tags=["session"],
    responses=error_responses(400, 404, 429, 503),
    dependencies=[Depends(anybody)],
)
log = structlog.get_logger(__name__)

TOKEN_S = 12 * 3600.0
"""How long a sign-in is valid; then the provider is asked again."""
LABEL = "oidc"  # of the tokens that sign-ins make
_STATE_S = 600
_STATE = re.compile("[A-Za-z0-9_-]{32}")
_MAX_CODE_CHARS = 4096


@router.get("/name", responses=json_response(responses.SignInProvider))
async def provider_name(request: Request) -> dict[str, Any]:
    """What the button of the sign-in page says; null if there is no provider."""
    provider: OidcProvider | None = request.app.state.oidc
    return {"name": None if provider is None else provider.config.name}


@router.get("", status_code=303, response_class=RedirectResponse)
def begin(request: Request) -> RedirectResponse:
    """Send the browser to the provider."""
    provider, sessions = _provider(request), _sessions(request)
    state = secrets.token_urlsafe(24)
    nonce, verifier = _derived(sessions, state)
    try:
        url = provider.authorization_url(_redirect_uri(request), state, nonce, verifier)
    except ProviderFailed as error:
        log.warning("oidc.failed", error=str(error))
        return _to_page("oidc-failed")
    response = RedirectResponse(url, 303)
    response.headers["Set-Cookie"] = _state_cookie(sessions, state, _STATE_S)
    return response


@router.get("/callback", status_code=303, response_class=RedirectResponse)
async def finish(
    request: Request,
    *,
    code: Annotated[str, Query(max_length=_MAX_CODE_CHARS)] = "",
    state: Annotated[str, Query(max_length=100)] = "",
) -> RedirectResponse:
    """The provider has sent the browser back. Whatever is wrong, the page says it, and the log why."""
    provider, sessions = _provider(request), _sessions(request)
    limits: RateLimits = request.app.state.rate_limits
    address = address_of(request)
    limits.check_sign_in(address)
    limits.count_failed_sign_in(address)  # until it has succeeded, so that many at once are counted, too
    kept = request.cookies.get(_cookie_name(sessions), "")
    if not (code and _STATE.fullmatch(state) and _STATE.fullmatch(kept) and hmac.compare_digest(state, kept)):
        response = _to_page("oidc-failed" if request.query_params.get("error") else "oidc-expired")
    else:
        response = await run_in_threadpool(_sign_in, request, provider, sessions, code, state)
        if "#login=" in response.headers["location"]:
            limits.forgive_sign_in(address)
    response.headers.append("Set-Cookie", _state_cookie(sessions, "", 0))
    return response


def _sign_in(
    request: Request, provider: OidcProvider, sessions: BrowserSessions, code: str, state: str
) -> RedirectResponse:
    address = address_of(request)
    try:
        claims = provider.claims(code, _redirect_uri(request), *_derived(sessions, state))
        name, role = member_of(claims, provider.config)
        try:
            made = _code_for(sessions, name, role, address)
        except IntegrityError:  # another browser of theirs has added the user meanwhile
            made = _code_for(sessions, name, role, address)
        response = _to_page(f"login={made}")
        response.headers["Set-Cookie"] = sessions.code_cookie(made)
        return response
    except ProviderFailed as error:
        log.warning("oidc.failed", error=str(error))
        return _to_page("oidc-failed")
    except NotAMember as error:
        log.info("oidc.refused", error=str(error))
        sessions.context.access.deny(Actor("", address=address), "session.oidc", reason=str(error))
        return _to_page("oidc-refused")


def _code_for(sessions: BrowserSessions, name: str, role: Role, address: str) -> str:
    """A one-time code of the user, who is added or gets the role if need be. Raises NotAMember."""
    context = sessions.context
    now, (token, token_id) = context.clock.now(), users.new_token()
    with context.database.begin() as conn:
        row, actor = users.get(conn, name), Actor(name, token_id, address)
        if row is not None and row.disabled_at is not None:
            raise NotAMember(f"{name} is disabled")
        detail = {"role": role.value, "by": LABEL}
        if row is None:
            users.add(conn, name, role, now)
            audit.record(conn, Deed(actor, "user.create", f"user {name}", detail=detail), now)
        elif row.role != role.value:
            users.change(conn, name, role=role.value)
            audit.record(conn, Deed(actor, "user.change", f"user {name}", detail=detail), now)
        expires_at = now + TOKEN_S * context.time_scale.speed
        users.add_token(conn, token, name, role, label=LABEL, now=now, expires_at=expires_at)  # nobody gets its secret
        audit.record(conn, Deed(actor, "session.oidc"), now)
        code = sessions.create_code(conn, token_id)
    context.access.refresh()
    return code


def _derived(sessions: BrowserSessions, state: str) -> tuple[str, str]:
    """Nonce and verifier of a sign-in: nobody else can find them from its state."""
    signed = (sessions.context.keyring.sign(purpose, state) for purpose in ("oidc nonce", "oidc verifier"))
    nonce, verifier = (hashlib.sha256(value.encode()).hexdigest() for value in signed)
    return nonce, verifier


def _redirect_uri(request: Request) -> str:
    """Under the name by which the browser calls this controller: requests with a foreign name do not come this far."""
    scheme = "https" if _sessions(request).is_secure else "http"
    return f"{scheme}://{request.headers['host']}{router.prefix}/callback"


def _to_page(fragment: str) -> RedirectResponse:
    return RedirectResponse(f"/#{fragment}", 303)


def _cookie_name(sessions: BrowserSessions) -> str:
    return f"perdure-oidc-{sessions.context.controller_id}"


def _state_cookie(sessions: BrowserSessions, state: str, max_age_s: int) -> str:
    """It is sent when the provider, another site, sends the browser back: so it is Lax, and good for nothing else."""
    secure = "; Secure" if sessions.is_secure else ""
    path = f"Path={router.prefix}; Max-Age={max_age_s}"
    return f"{_cookie_name(sessions)}={state}; {path}; HttpOnly; SameSite=Lax{secure}"


def _provider(request: Request) -> OidcProvider:
    provider: OidcProvider | None = request.app.state.oidc
    if provider is None:
        raise RequestRejected(
            "this controller has no provider for signing in", fix="add oidc to its config.yaml", status=404
        )
    return provider


def _sessions(request: Request) -> BrowserSessions:
    sessions: BrowserSessions = request.app.state.browser_sessions
    return sessions
