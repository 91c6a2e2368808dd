"""Add named users, their tokens, the owners of uploads, and the audit log, and an index of jobs by user.

The controller's own token stays valid: it is an administrator's. A trigger keeps rows of the audit log from being
changed.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

_BIG_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_SQLITE_TRIGGER = (
    "CREATE TRIGGER audit_is_append_only BEFORE UPDATE ON audit "
    "BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END"
)
_POSTGRESQL_FUNCTION = (
    "CREATE FUNCTION refuse_audit_update() RETURNS trigger LANGUAGE plpgsql AS "
    "$$ BEGIN RAISE EXCEPTION 'the audit log is append-only'; END $$"
)
_POSTGRESQL_TRIGGER = (
    "CREATE TRIGGER audit_is_append_only BEFORE UPDATE ON audit "
    "FOR EACH STATEMENT EXECUTE FUNCTION refuse_audit_update()"
)


def upgrade() -> None:
    op.create_table(
        "user_account",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("disabled_at", sa.Float(), nullable=True),
        sa.Column("max_jobs", sa.Integer(), nullable=True),
        sa.Column("max_running_jobs", sa.Integer(), nullable=True),
        sa.Column("budget_usd", sa.Float(), nullable=True),
        sa.Column("budget_action", sa.String(), nullable=False, server_default="keep"),
        sa.Column("warned_month", sa.String(), nullable=True),
        sa.Column("spent_month", sa.String(), nullable=True),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "user_token",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("user", sa.String(), nullable=False),
        sa.Column("label", sa.String(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("expires_at", sa.Float(), nullable=True),
        sa.Column("last_used_at", sa.Float(), nullable=True),
        sa.Column("revoked_at", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_user_token_user", "user_token", ["user"])
    op.create_table(
        "upload_owner",
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("user", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("digest", "user"),
    )
    op.create_table(
        "audit",
        sa.Column("id", _BIG_ID, nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("user", sa.String(), nullable=False),
        sa.Column("token", sa.String(), nullable=False),
        sa.Column("address", sa.String(), nullable=False),
        sa.Column("action", sa.String(), nullable=False),
        sa.Column("target", sa.String(), nullable=False),
        sa.Column("outcome", sa.String(), nullable=False),
        sa.Column("detail", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_audit_user", "audit", ["user", "id"])
    op.create_index("ix_audit_at", "audit", ["at"])
    op.create_index("ix_job_user", "job", ["user", "id"])
    if op.get_bind().dialect.name == "postgresql":
        op.execute(_POSTGRESQL_FUNCTION)
        op.execute(_POSTGRESQL_TRIGGER)
    else:
        op.execute(_SQLITE_TRIGGER)
