"""The calls of the controller's API about users, tokens and the audit log, and their responses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypedDict
from urllib.parse import quote

from perdure.sdk.connection.client import ApiError, Client, user_name
from perdure.sdk.connection.responses import NotAController, expect_list
from perdure.sdk.files.logins import Login, checked

ROLES = ("viewer", "user", "operator", "admin")
DEFAULT_DAYS = 90.0
"""How long a token is valid, unless another time is given."""


class WhoAmI(TypedDict):
    """Whom a token belongs to, and what it allows. `token`: its id; empty for the controller's own token."""

    user: str
    role: str
    token: str
    token_role: str
    expires_at: str | None
    has_users: bool
    sees_all: bool
    permissions: list[str]
    budget_usd: float | None
    spent_usd: float | None


class User(TypedDict):
    """A user. Limits that are None are those of config.yaml; a budget is USD per calendar month. `spent_usd`: of this
    month; None where only one user was changed."""

    name: str
    role: str
    created_at: str
    disabled_at: str | None
    max_jobs: int | None
    max_running_jobs: int | None
    budget_usd: float | None
    budget_action: str
    spent_usd: float | None


class Token(TypedDict):
    """A token, without its secret."""

    id: str
    user: str
    label: str
    role: str
    created_at: str
    expires_at: str | None
    last_used_at: str | None
    revoked_at: str | None


class NewToken(Token):
    """A token that was just created. `token` is shown this once."""

    token: str


class AuditEntry(TypedDict):
    """Who did what, to what, and whether it was allowed."""

    id: int
    at: str
    user: str
    token: str
    address: str
    action: str
    target: str
    outcome: str
    detail: dict[str, Any]


# Every function raises what `Client` raises.


def whoami(client: Client) -> WhoAmI:
    """Whom the client's token belongs to, and what it allows."""
    return client.call(WhoAmI, "GET", "/whoami")


@dataclass(frozen=True)
class Ownership:
    """Which jobs are the client's.

    `names`: the users of its own jobs, the present one first. `users`: the names that belong to somebody; None where
    nobody may know, because the client sees no jobs but its own, or because there are no named users.
    """

    names: tuple[str, ...]
    users: frozenset[str] | None = None

    def is_left_over(self, user: str) -> bool:
        """Whether a job of `user` is from the time before named users, and is nobody's but the administrator's."""
        return self.users is not None and user not in self.users and user not in self.names


def ownership(client: Client) -> Ownership:
    """Whose jobs the client's own are: those of the token's user, or as long as there are no named users, those of this
    computer's user.

    The controller's own token keeps the jobs that it launched before there were named users: they have the name of this
    computer's user, unless that is a named user's by now.
    """
    try:
        me = whoami(client)
    except ApiError as error:
        if error.status != 404:  # a controller of an older version
            raise
        return Ownership((user_name(),))
    if not me["has_users"]:
        return Ownership((user_name(),))
    if me["token"]:
        return Ownership((me["user"],))
    users = frozenset(user["name"] for user in list_users(client))
    earlier = () if user_name() in users else (user_name(),)
    return Ownership((me["user"], *earlier), users)


def redeem_command_line_code(client: Client, code: str, secret: str) -> Login:
    """Trade a code that a browser has returned for a token. `client`: without one."""
    body = {"code": code, "secret": secret}
    answer = client._expect(Login, client._call_once("POST", "/session/command-line/token", body=body))
    try:
        return checked(answer)
    except ValueError as error:
        raise NotAController(client.endpoint.url, f"a sign-in that is not valid: {error}") from error


def list_users(client: Client) -> list[User]:
    """All users, by name. For administrators."""
    return expect_list(User, client._call("GET", "/users"), client.endpoint.url)


def create_user(client: Client, name: str, changes: Mapping[str, Any]) -> User:
    """Add a user. `changes`: the role and limits, as in `change_user`."""
    return client.call(User, "POST", "/users", body={"name": name, **changes})


def change_user(client: Client, name: str, changes: Mapping[str, Any]) -> User:
    """Change `role`, `disabled`, `max_jobs`, `max_running_jobs`, `budget_usd` or `budget_action` of a user."""
    return client.call(User, "PATCH", f"/users/{quote(name, safe='')}", body=dict(changes))


def list_tokens(client: Client, user: str | None = None) -> list[Token]:
    """The tokens of a user, or all that the caller may see."""
    return expect_list(Token, client._call("GET", "/tokens", query={"user": user}), client.endpoint.url)


def create_token(
    client: Client, user: str, *, label: str = "", role: str | None = None, days: float | None = DEFAULT_DAYS
) -> NewToken:
    """Create a token of a user. Not repeated if the connection breaks: a token may then exist that nobody knows."""
    body = {"user": user, "label": label, "role": role, "days": days}
    made = client._call_once("POST", "/tokens", body=body)
    return client._expect(NewToken, made)


def revoke_token(client: Client, token_id: str) -> Token:
    """Revoke a token."""
    return client.call(Token, "DELETE", f"/tokens/{quote(token_id, safe='')}")


def audit_log(client: Client, **wanted: Any) -> list[AuditEntry]:
    """Entries of the audit log, the newest first. `wanted`: `limit`, `before`, `user`, `action`, `outcome` and
    `since_s`."""
    return expect_list(AuditEntry, client._call("GET", "/audit", query=wanted), client.endpoint.url)
