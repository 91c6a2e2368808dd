"""Routes for users and their tokens, and for what the caller's own token allows."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import Row
from sqlalchemy.exc import IntegrityError

from perdure.controller.api.access.permissions import Caller
from perdure.controller.api.auth import Admin, Reader
from perdure.controller.api.context import ApiContext
from perdure.controller.api.schemas import error_responses, json_response
from perdure.controller.store.access import audit, budgets, users
from perdure.controller.store.access.roles import AccessRight, Role
from perdure.controller.store.queries.job_listing import iso
from perdure.controller.store.records import job_claims
from perdure.controller.submit.errors import RequestRejected
from perdure.sdk.connection import users as types

router = APIRouter(prefix="/api/v1", tags=["users"], responses=error_responses(400, 401, 503))

_DAY_S = 86_400.0
_MAX_DAYS = 3650.0
_MAX_COUNT = 1_000_000
_NAME_FIX = "use at most 64 lower-case letters, digits, `.`, `_`, `-` and `@`; begin and end with a letter or digit"
UserName = Annotated[str, Path(max_length=200, description="the user's name")]
TokenId = Annotated[str, Path(max_length=200, description="the token's id")]


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class UserChanges(_Body):
    """A field that is left out stays as it is; null removes a limit."""

    role: Annotated[Role, Field(strict=False)] | None = None
    disabled: bool | None = None
    max_jobs: int | None = Field(None, ge=0, le=_MAX_COUNT)
    max_running_jobs: int | None = Field(None, ge=0, le=_MAX_COUNT)
    budget_usd: float | None = Field(None, ge=0, le=1e12, allow_inf_nan=False)
    budget_action: Literal["keep", "end"] | None = None


class NewUserBody(UserChanges):
    name: str = Field(max_length=200)


class NewTokenBody(_Body):
    user: str = Field(max_length=200)
    label: str = Field("", max_length=200)
    role: Annotated[Role, Field(strict=False)] | None = None
    days: float | None = Field(90.0, gt=0, le=_MAX_DAYS, allow_inf_nan=False)


@router.get("/whoami", responses=json_response(types.WhoAmI))
def whoami(caller: Reader) -> dict[str, Any]:
    """The user whom the caller's token belongs to, and what it allows."""
    with caller.context.database.connect() as conn:
        row = users.get(conn, caller.name) if caller.token_id else None
        spent = budgets.spent(conn, [caller.name], caller.context.clock.now()) if row else {}
        token = users.token(conn, caller.token_id) if caller.token_id else None
    return {
        "user": caller.name,
        "role": row.role if row else Role.ADMIN.value,
        "token": caller.token_id,
        "token_role": token.role if token else Role.ADMIN.value,
        "expires_at": iso(token.expires_at) if token else None,
        "has_users": caller.context.access.has_users,
        "sees_all": caller.sees is None,
        "permissions": [str(p.name).lower() for p in AccessRight if p in caller.permissions],
        "budget_usd": row.budget_usd if row else None,
        "spent_usd": spent.get(caller.name),
    }


@router.get("/users", responses=json_response(list[types.User]))
def list_users(caller: Admin) -> list[dict[str, Any]]:
    """All users, by name. `spent_usd`: what their machines have cost in this calendar month."""
    with caller.context.database.connect() as conn:
        rows = users.all_users(conn)
        spent = budgets.spent(conn, [row.name for row in rows], caller.context.clock.now())
    return [{**_user(row), "spent_usd": spent[row.name]} for row in rows]


@router.post("/users", status_code=201, responses=json_response(types.User, status=201) | error_responses(409))
def create_user(caller: Admin, body: NewUserBody) -> dict[str, Any]:
    """Add a user. From the first one on, the user of a job is that of the token. Earlier jobs of the same name become
    the user's."""
    if not users.NAME.fullmatch(body.name):
        raise RequestRejected(f"{body.name!r} cannot be the name of a user", where="name", fix=_NAME_FIX)
    if body.name in users.RESERVED_NAMES:
        raise RequestRejected(f"{body.name} is a name of the controller's own", where="name", fix="choose another name")
    _require_no_older_controller(caller.context)
    now, role = caller.context.clock.now(), body.role or Role.USER
    columns = _columns(body, now)
    columns.pop("role", None)
    try:
        with caller.context.database.begin() as conn:
            users.add(conn, body.name, role, now, **columns)
            audit.record(conn, caller.deed("user.create", f"user {body.name}", **{"role": role, **_shown(body)}), now)
            row = users.get(conn, body.name)
    except IntegrityError as error:
        raise RequestRejected(
            f"there is a user {body.name} already", where="name", fix="see `perdure users list`", status=409
        ) from error
    caller.context.access.refresh()
    return _user(row)


@router.patch("/users/{name}", responses=json_response(types.User) | error_responses(404))
def change_user(caller: Admin, name: UserName, body: UserChanges) -> dict[str, Any]:
    """Change a user's role, limits or budget, or disable or enable the user. A disabled user's tokens are refused."""
    now = caller.context.clock.now()
    with caller.context.database.begin() as conn:
        if users.get(conn, name) is None:
            raise _no_such_user(name)
        if columns := _columns(body, now):
            users.change(conn, name, **columns)
            audit.record(conn, caller.deed("user.change", f"user {name}", **_shown(body)), now)
        row = users.get(conn, name)
    caller.context.access.refresh()
    return _user(row)


@router.get("/tokens", responses=json_response(list[types.Token]))
def list_tokens(caller: Reader, user: Annotated[str | None, Query(max_length=200)] = None) -> list[dict[str, Any]]:
    """The tokens of a user, by default those of all users; without their secrets. Everybody but administrators gets
    their own ones only."""
    of = user if caller.is_administrator else caller.name
    if user not in (None, of):
        return []
    with caller.context.database.connect() as conn:
        return [_token(row) for row in users.tokens(conn, of)]


@router.post("/tokens", status_code=201, responses=json_response(types.NewToken, status=201) | error_responses(404))
def create_token(caller: Admin, body: NewTokenBody) -> dict[str, Any]:
    """Create a token of a user. The response has the token, which is stored as a digest only. `days`: how long it is
    valid; null: until it is revoked. `role`: what it may do at most; by default the role that its user has now."""
    context = caller.context
    now, (token, token_id) = context.clock.now(), users.new_token()
    expires_at = None if body.days is None else now + body.days * _DAY_S * context.time_scale.speed
    with context.database.begin() as conn:
        row = users.get(conn, body.user)
        if row is None:
            raise _no_such_user(body.user)
        role = body.role or Role(row.role)
        users.add_token(conn, token, body.user, role, label=body.label, now=now, expires_at=expires_at)
        shown = {"role": role, "days": body.days, "label": body.label}
        audit.record(conn, caller.deed("token.create", f"token {token_id} of {body.user}", **shown), now)
        stored = users.token(conn, token_id)
    context.access.refresh()
    return {**_token(stored), "token": token}


@router.delete("/tokens/{token_id}", responses=json_response(types.Token) | error_responses(404))
def revoke_token(caller: Reader, token_id: TokenId) -> dict[str, Any]:
    """Revoke a token: one of the caller's own, or, for administrators, of anybody. It is refused at once here, and
    within 5 s at other controllers; its streams end."""
    context, now = caller.context, caller.context.clock.now()
    with context.database.begin() as conn:
        row = users.token(conn, token_id)
        if row is None or not _may_revoke(caller, row):
            raise RequestRejected(
                f"there is no token {token_id[:80]!r}", where="token_id", fix="see `perdure tokens list`", status=404
            )
        if users.revoke(conn, token_id, now):
            audit.record(conn, caller.deed("token.revoke", f"token {token_id} of {row.user}"), now)
        row = users.token(conn, token_id)
    context.access.refresh()
    return _token(row)


def _may_revoke(caller: Caller, row: Row[Any]) -> bool:
    return caller.is_administrator or row.user == caller.name


def _columns(body: UserChanges, now: float) -> dict[str, Any]:
    """The columns that a request sets."""
    given = {name: value for name, value in body.model_dump(exclude_unset=True).items() if name != "name"}
    for name in ("role", "budget_action", "disabled"):
        if given.get(name, 0) is None:
            del given[name]
    if "role" in given:
        given["role"] = Role(given["role"]).value
    if "disabled" in given:
        given["disabled_at"] = now if given.pop("disabled") else None
    if given.keys() & {"budget_usd", "budget_action"}:
        given |= {"warned_month": None, "spent_month": None}  # another budget is reported anew
    return given


def _shown(body: UserChanges) -> dict[str, Any]:
    """What an entry of the audit log says of a request."""
    return body.model_dump(mode="json", exclude_unset=True, exclude={"name", "role"} if body.role is None else {"name"})


def _user(row: Row[Any] | None) -> dict[str, Any]:
    assert row is not None
    return {
        "name": row.name,
        "role": row.role,
        "created_at": iso(row.created_at),
        "disabled_at": iso(row.disabled_at),
        "max_jobs": row.max_jobs,
        "max_running_jobs": row.max_running_jobs,
        "budget_usd": row.budget_usd,
        "budget_action": row.budget_action,
        "spent_usd": None,
    }


def _token(row: Row[Any] | None) -> dict[str, Any]:
    assert row is not None
    return {
        "id": row.id,
        "user": row.user,
        "label": row.label,
        "role": row.role,
        "created_at": iso(row.created_at),
        "expires_at": iso(row.expires_at),
        "last_used_at": iso(row.last_used_at),
        "revoked_at": iso(row.revoked_at),
    }


def _require_no_older_controller(context: ApiContext) -> None:
    """Raises RequestRejected while a controller runs that knows no users: it would let no named user in."""
    with context.database.connect() as conn:
        older = job_claims.older_controllers(conn, users.SCHEMA_REVISION, context.clock.now())
    if older:
        raise RequestRejected(
            f"a controller of an earlier version runs at {older[0]}, and knows no named users",
            where="name",
            fix="upgrade all controllers first",
            status=409,
        )


def _no_such_user(name: str) -> RequestRejected:
    return RequestRejected(f"there is no user {name[:80]!r}", where="user", fix="see `perdure users list`", status=404)
