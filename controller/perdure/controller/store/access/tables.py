"""The tables of users, their tokens, and the audit log, in the style of `tables`: times are epoch seconds (UTC)."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, BigInteger, Column, Index, Integer
from sqlmodel import Field, SQLModel


class UserRow(SQLModel, table=True):
    """A named user. It is never deleted, so that no later user of the same name gets its jobs."""

    __tablename__ = "user_account"
    name: str = Field(primary_key=True)
    role: str
    created_at: float
    disabled_at: float | None = None
    #: Limits of this user; None: those of config.yaml.
    max_jobs: int | None = None
    max_running_jobs: int | None = None
    #: USD for each calendar month (UTC); None: no limit.
    budget_usd: float | None = None
    #: What happens to running jobs once the budget is spent: "keep" or "end".
    budget_action: str = Field(default="keep", sa_column_kwargs={"server_default": "keep"})
    #: The month, such as 2026-11, in which most of the budget was spent, and in which all of it was: reported once.
    warned_month: str | None = None
    spent_month: str | None = None


class TokenRow(SQLModel, table=True):
    """A token of a user. Only its digest is stored."""

    __tablename__ = "user_token"
    #: The part of the token that is not secret.
    id: str = Field(primary_key=True)
    user: str = Field(index=True)
    label: str = ""
    #: What the token may do at most: its permissions are those that this role and the user's role share.
    role: str
    digest: str
    created_at: float
    expires_at: float | None = None
    last_used_at: float | None = None
    revoked_at: float | None = None


class UploadOwnerRow(SQLModel, table=True):
    """A user who has sent an upload, and whose jobs may use it. There may be several, since uploads are named by their
    content."""

    __tablename__ = "upload_owner"
    digest: str = Field(primary_key=True)
    user: str = Field(primary_key=True)


class AuditRow(SQLModel, table=True):
    """Who did what. Rows are never changed: the database refuses that; retention deletes old ones."""

    __tablename__ = "audit"
    __table_args__ = (Index("ix_audit_user", "user", "id"), Index("ix_audit_at", "at"))
    id: int | None = Field(
        default=None, sa_column=Column(BigInteger().with_variant(Integer(), "sqlite"), primary_key=True)
    )
    at: float
    user: str
    #: The id of the token; empty for the controller's own token, and for somebody without one.
    token: str = ""
    address: str = ""
    action: str
    target: str = ""
    outcome: str
    detail: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))


AUDIT_TRIGGERS = {
    "sqlite": (
        "CREATE TRIGGER audit_is_append_only BEFORE UPDATE ON audit "
        "BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END",
    ),
    "postgresql": (
        "CREATE FUNCTION refuse_audit_update() RETURNS trigger LANGUAGE plpgsql AS "
        "$$ BEGIN RAISE EXCEPTION 'the audit log is append-only'; END $$",
        "CREATE TRIGGER audit_is_append_only BEFORE UPDATE ON audit "
        "FOR EACH STATEMENT EXECUTE FUNCTION refuse_audit_update()",
    ),
}
"""What keeps rows of the audit log from being changed, by dialect. The migration has the same statements."""
