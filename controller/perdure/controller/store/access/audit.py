"""The audit log: who did what, to what, and whether it was allowed. Append-only, and free of secrets.

What changes the database records it in the same transaction; what acts on something else records it before it acts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Row, delete, insert, select

from perdure.controller.store.tables import AuditRow

Audit = AuditRow.__table__  # type: ignore[attr-defined]
INSERT = insert(Audit)

ALLOWED, DENIED = "allowed", "denied"
_MAX_TEXT = 200


@dataclass(frozen=True)
class Actor:
    """Who acts. `token`: the id of the token; empty for the controller's own token and for nobody."""

    user: str
    token: str = ""
    address: str = ""


@dataclass(frozen=True)
class Deed:
    """What an actor did, or was not allowed to do. `action`: such as `job.cancel`; `target`: such as `job 7`."""

    actor: Actor
    action: str
    target: str = ""
    outcome: str = ALLOWED
    detail: Mapping[str, Any] = field(default_factory=dict)

    def row(self, at: float) -> dict[str, Any]:
        """The columns of the row. Texts are cut, since callers choose some of them."""
        actor = self.actor
        texts = {"user": actor.user, "token": actor.token, "address": actor.address, "action": self.action}
        cut = {name: text[:_MAX_TEXT] for name, text in {**texts, "target": self.target}.items()}
        return {"at": at, **cut, "outcome": self.outcome, "detail": dict(self.detail)}


@dataclass(frozen=True)
class AuditFilter:
    """Which entries to list; None sets no condition. `action` is a whole one, or a prefix that ends in a dot."""

    limit: int = 50
    before: int | None = None
    user: str | None = None
    action: str | None = None
    outcome: str | None = None
    since: float | None = None  # epoch seconds


def record(conn: Connection, deed: Deed, at: float) -> None:
    """Append an entry, as part of the caller's transaction."""
    conn.execute(INSERT, deed.row(at))


def record_all(conn: Connection, deeds: Sequence[tuple[Deed, float]]) -> None:
    """Append entries, each with its time."""
    if deeds:
        conn.execute(INSERT, [deed.row(at) for deed, at in deeds])


def latest(conn: Connection, wanted: AuditFilter) -> Sequence[Row[Any]]:
    """The entries that match, the newest first."""
    query = select(Audit).order_by(Audit.c.id.desc()).limit(wanted.limit)
    if wanted.before is not None:
        query = query.where(Audit.c.id < wanted.before)
    if wanted.user is not None:
        query = query.where(Audit.c.user == wanted.user)
    if wanted.action is not None:
        is_prefix = wanted.action.endswith(".")
        action = Audit.c.action
        query = query.where(action.startswith(wanted.action, autoescape=True) if is_prefix else action == wanted.action)
    if wanted.outcome is not None:
        query = query.where(Audit.c.outcome == wanted.outcome)
    if wanted.since is not None:
        query = query.where(Audit.c.at >= wanted.since)
    return conn.execute(query).all()


def delete_before(conn: Connection, at: float, limit: int) -> int:
    """Delete up to `limit` entries from before `at`. Returns how many."""
    old = select(Audit.c.id).where(Audit.c.at < at).limit(limit)
    return conn.execute(delete(Audit).where(Audit.c.id.in_(old))).rowcount
