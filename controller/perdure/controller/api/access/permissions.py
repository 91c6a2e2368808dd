"""Who calls: what they may do, and whose things they may see, change and enter.

Each route declares a permission by the type of its parameter `caller` (`Reader`, `Runner`, `Operator`, `Admin`), or
that it is for somebody else by a dependency that is marked with `declared`. A route that has no declaration is not
served (`api.routes.sections`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from perdure.controller.api.context import ApiContext
from perdure.controller.store.access.audit import Actor, Deed
from perdure.controller.store.access.roles import NEEDED_ROLE, AccessRight
from perdure.controller.store.access.users import ADMIN_NAME
from perdure.controller.submit.errors import RequestRejected
from perdure.controller.submit.requester import Requester

ALL = ~AccessRight(0)
Function = TypeVar("Function", bound=Callable[..., Any])
_COMMAND_LINE_PREFIX, _COMMAND_LINE_PURPOSE = "pds_", "command line"


@dataclass(frozen=True)
class Caller:
    """An authenticated user. `token_id`: empty for the controller's own token, which is an administrator's.

    `valid_until`: when the sign-in of a command line ends; None for every other caller.
    """

    context: ApiContext
    name: str
    permissions: AccessRight
    token_id: str = ""
    address: str = ""
    valid_until: float | None = None

    @property
    def actor(self) -> Actor:
        return Actor(self.name, self.token_id, self.address)

    @property
    def sees(self) -> str | None:
        """The user whose things the caller may see; None: those of everybody."""
        return None if AccessRight.SEE_ALL in self.permissions else self.name

    @property
    def changes(self) -> str | None:
        """The user whose things the caller may change; None: those of everybody."""
        return None if AccessRight.OPERATE in self.permissions else self.name

    @property
    def enters(self) -> str | None:
        """The user whose machines the caller may enter; None: those of everybody. Whoever enters a machine can read its
        secrets, so operators enter only their own."""
        return None if self.is_administrator else self.name

    @property
    def is_administrator(self) -> bool:
        return AccessRight.ADMINISTER in self.permissions

    @property
    def is_command_line(self) -> bool:
        """Whether this is a command line that was signed in by a browser."""
        return self.valid_until is not None

    def is_valid(self) -> bool:
        """Whether the token is still valid: for streams that stay open. Uses no database."""
        now = self.context.clock.now()
        if self.valid_until is not None and now >= self.valid_until:
            return False
        if not self.token_id:
            return True
        grant = self.context.access.grant(self.token_id)
        return grant is not None and grant.is_valid(now)

    def user_for(self, stated: str) -> str:
        """The user of what the caller submits. As long as there are no named users, callers say who they are."""
        return self.name if self.token_id or self.context.access.has_users else stated

    def requester(self, stated: str = "") -> Requester:
        """On whose behalf the caller requests something. `stated`: as for `user_for`."""
        return Requester(
            self.user_for(stated),
            self.actor,
            self.changes,
            for_owner=self.context.access.has_users,
            may_run_callbacks=self.is_administrator,
        )

    def key_for(self, key: str | None) -> str | None:
        """The idempotency key that is stored. A named user's has the name, so that nobody is shown the jobs of another
        user who has chosen the same key."""
        return key if key is None or not self.token_id else f"@{self.name}/{key}"

    def deed(self, action: str, target: str = "", **detail: Any) -> Deed:
        """What the caller does, for the audit log."""
        return Deed(self.actor, action, target, detail=detail)

    def require(self, permission: AccessRight, action: str) -> None:
        """Raises RequestRejected (403) without the permission."""
        if permission in self.permissions:
            return
        role = NEEDED_ROLE[permission]
        self.context.access.deny(self.actor, action, reason=f"needs the role {role}")
        raise RequestRejected(
            f"this needs the role {role}, which your token does not have",
            where="Authorization",
            fix="`perdure whoami` shows your role; ask an administrator for another",
            status=403,
        )


def authenticate_token(context: ApiContext, token: str, address: str = "") -> Caller | None:
    """The caller with this token; None if it is unknown, revoked or expired. Uses no database.

    Compares in constant time, and says to nobody but the audit log why a token is refused.
    """
    if context.keyring.is_user_token(token):
        return Caller(context, ADMIN_NAME, ALL, "", address)
    if token.startswith(_COMMAND_LINE_PREFIX):
        return _caller_of_command_line(context, token, address)
    now = context.clock.now()
    grant = context.access.find(token)
    if grant is None or not grant.is_valid(now):
        if token:
            user, token_id = (grant.user, grant.token_id) if grant else ("", "")
            reason = grant.refusal(now) if grant else "unknown"
            context.access.deny(Actor(user, token_id, address), "token.refused", reason=reason)
        return None
    context.access.record_use(grant.token_id, now)
    return Caller(context, grant.user, grant.permissions, grant.token_id, address)


def caller_of_token(context: ApiContext, token_id: str, address: str = "") -> Caller | None:
    """The caller that a browser's session stands for, by the id of the token that it was signed in with; None if that
    is no longer valid. The empty id is that of the controller's own token."""
    if not token_id:
        return Caller(context, ADMIN_NAME, ALL, "", address)
    grant = context.access.grant(token_id)
    if grant is None or not grant.is_valid(context.clock.now()):
        return None
    return Caller(context, grant.user, grant.permissions, token_id, address)


def command_line_token(context: ApiContext, token_id: str, valid_until: float) -> str:
    """What a command line sends that was signed in by a browser. It is signed, not stored; it stands for the token with
    which the browser is signed in, and is void when that is revoked or expires."""
    fields = f"{token_id}.{valid_until * 1000:.0f}"
    return (
        f"{_COMMAND_LINE_PREFIX}{fields}.{context.keyring.sign(_COMMAND_LINE_PURPOSE, _of_controller(context, fields))}"
    )


def _caller_of_command_line(context: ApiContext, token: str, address: str) -> Caller | None:
    match token.removeprefix(_COMMAND_LINE_PREFIX).split("."):
        case [token_id, until_ms, key_id, mac] if token_id and until_ms.isascii() and until_ms.isdecimal():
            signed = _of_controller(context, f"{token_id}.{until_ms}")
            if context.keyring.is_signed(_COMMAND_LINE_PURPOSE, signed, f"{key_id}.{mac}"):
                until = int(until_ms) / 1000
                caller = caller_of_token(context, token_id, address) if context.clock.now() < until else None
                if caller is None:
                    context.access.deny(Actor("", token_id, address), "token.refused", reason="the sign-in has ended")
                return None if caller is None else replace(caller, valid_until=until)
    context.access.deny(Actor("", "", address), "token.refused", reason="unknown")
    return None


def _of_controller(context: ApiContext, fields: str) -> str:
    return f"{context.controller_id}:{fields}"


def declared(who: str) -> Callable[[Function], Function]:
    """Marks a dependency that says for whom a route is: `permission: …`, `node`, `anybody`."""

    def mark(function: Function) -> Function:
        function.declares = who  # type: ignore[attr-defined]
        return function

    return mark


@declared("anybody")
async def anybody() -> None:
    """The dependency of a route that needs no token."""


def declaration(dependant: Any) -> str | None:
    """What a route declares, from its tree of dependencies (FastAPI's `Dependant`); None if it declares nothing."""
    own = getattr(dependant.call, "declares", None)
    if own is not None:
        return str(own)
    declared = (declaration(dependency) for dependency in dependant.dependencies)
    return next((who for who in declared if who is not None), None)
