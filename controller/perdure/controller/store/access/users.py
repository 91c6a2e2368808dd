"""Users and their tokens. Every change of what a token may do also changes the version, which controllers watch."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Row, insert, select, update

from perdure.controller.store.access.roles import Role
from perdure.controller.store.records import facts
from perdure.controller.store.tables import TokenRow, UserRow

Users = UserRow.__table__  # type: ignore[attr-defined]
Tokens = TokenRow.__table__  # type: ignore[attr-defined]

ADMIN_NAME = "admin"
"""The user of the controller's own token. No named user may have this name."""
RESERVED_NAMES = (ADMIN_NAME, "controller")
SCHEMA_REVISION = "0006"
"""The first schema that has users."""
KEEP, END = "keep", "end"
"""What happens to running jobs once a budget is spent (`user_account.budget_action`)."""

NAME = re.compile(r"[a-z0-9](?:[a-z0-9._@-]{0,62}[a-z0-9])?")
TOKEN = re.compile(r"pdu_([A-Za-z0-9]{10})_[A-Za-z0-9_-]{43}")
_ID_CHARS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
_VERSION = "access.version"
_SECRET_BYTES = 32


def version(conn: Connection) -> str | None:
    """Changes whenever users or tokens change; None while there has never been a user."""
    return facts.get(conn, _VERSION)


def _touch(conn: Connection) -> None:
    facts.set(conn, _VERSION, secrets.token_hex(8))


def digest_of(token: str) -> str:
    """What is stored of a token. It has 256 random bits, so a fast digest is enough."""
    return hashlib.sha256(token.encode()).hexdigest()


def new_token() -> tuple[str, str]:
    """A new token, and its id."""
    token_id = "".join(secrets.choice(_ID_CHARS) for _ in range(10))
    return f"pdu_{token_id}_{secrets.token_urlsafe(_SECRET_BYTES)}", token_id


# --- users ------------------------------------------------------------------------------------------------------------


def add(conn: Connection, name: str, role: Role, now: float, **limits: Any) -> None:
    """Add a user. Raises IntegrityError if there is one of that name."""
    conn.execute(insert(Users).values(name=name, role=role.value, created_at=now, **limits))
    _touch(conn)


def change(conn: Connection, name: str, **columns: Any) -> None:
    """Set columns of a user."""
    conn.execute(update(Users).where(Users.c.name == name).values(**columns))
    _touch(conn)


def get(conn: Connection, name: str) -> Row[Any] | None:
    return conn.execute(select(Users).where(Users.c.name == name)).first()


def all_users(conn: Connection) -> Sequence[Row[Any]]:
    """Every user, by name."""
    return conn.execute(select(Users).order_by(Users.c.name)).all()


def budgeted(conn: Connection) -> Sequence[Row[Any]]:
    """The users who have a budget."""
    return conn.execute(select(Users).where(Users.c.budget_usd.is_not(None)).order_by(Users.c.name)).all()


def running_limits(conn: Connection) -> dict[str, int]:
    """User → how many of their jobs may have machines, of the users who have such a limit."""
    limited = select(Users.c.name, Users.c.max_running_jobs).where(Users.c.max_running_jobs.is_not(None))
    return {row.name: row.max_running_jobs for row in conn.execute(limited)}


def limits_of(conn: Connection, name: str) -> Mapping[str, Any]:
    """The columns of a user, with the limits; empty for a name without a user."""
    row = conn.execute(select(Users).where(Users.c.name == name)).mappings().first()
    return dict(row) if row else {}


# --- tokens -----------------------------------------------------------------------------------------------------------


def add_token(
    conn: Connection, token: str, user: str, role: Role, *, label: str, now: float, expires_at: float | None
) -> None:
    """Store the digest of a token."""
    match = TOKEN.fullmatch(token)
    assert match is not None
    conn.execute(
        insert(Tokens).values(
            id=match[1],
            user=user,
            label=label,
            role=role.value,
            digest=digest_of(token),
            created_at=now,
            expires_at=expires_at,
        )
    )
    _touch(conn)


def token(conn: Connection, token_id: str) -> Row[Any] | None:
    return conn.execute(select(Tokens).where(Tokens.c.id == token_id)).first()


def tokens(conn: Connection, user: str | None = None) -> Sequence[Row[Any]]:
    """The tokens of a user, or all of them, the newest first."""
    query = select(Tokens).order_by(Tokens.c.created_at.desc(), Tokens.c.id)
    return conn.execute(query if user is None else query.where(Tokens.c.user == user)).all()


def revoke(conn: Connection, token_id: str, now: float) -> bool:
    """Revoke a token. False if it was revoked before."""
    revoked = update(Tokens).where(Tokens.c.id == token_id, Tokens.c.revoked_at.is_(None)).values(revoked_at=now)
    if not conn.execute(revoked).rowcount:
        return False
    _touch(conn)
    return True


def record_uses(conn: Connection, uses: Mapping[str, float]) -> None:
    """Store when tokens were last used."""
    for token_id, at in sorted(uses.items()):  # in this order, so that two controllers cannot wait for each other
        conn.execute(update(Tokens).where(Tokens.c.id == token_id).values(last_used_at=at))


def grants(conn: Connection) -> list[Any]:
    """Every token with the role and the state of its user, for checking callers in memory."""
    query = select(
        Tokens.c.id,
        Tokens.c.user,
        Tokens.c.role,
        Tokens.c.digest,
        Tokens.c.expires_at,
        Tokens.c.revoked_at,
        Users.c.role.label("user_role"),
        Users.c.disabled_at,
    ).join(Users, Users.c.name == Tokens.c.user)
    return list(conn.execute(query))
