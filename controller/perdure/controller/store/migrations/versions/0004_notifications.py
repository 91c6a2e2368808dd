"""Add the outbox of notifications, and what a task's limits need: its last step, and the cost of its attempts.

The transaction that records an event inserts a row for each channel that the event goes to. So no event is lost, and
none is queued twice, whatever dies in between.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

_BIG_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_PENDING = sa.text("done_at IS NULL")


def upgrade() -> None:
    op.create_table(
        "notification",
        sa.Column("id", _BIG_ID, nullable=False),
        sa.Column("event_id", sa.String(), nullable=False),
        sa.Column("channel", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("job_id", sa.Integer(), nullable=True),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.Column("try_count", sa.Integer(), nullable=False),
        sa.Column("wake_at", sa.Float(), nullable=False),
        sa.Column("leased_by", sa.String(), nullable=True),
        sa.Column("leased_until", sa.Float(), nullable=False),
        sa.Column("done_at", sa.Float(), nullable=True),
        sa.Column("outcome", sa.String(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("event_id", "channel"),
    )
    op.create_index(
        "ix_notification_pending",
        "notification",
        ["channel", "id"],
        sqlite_where=_PENDING,
        postgresql_where=_PENDING,
    )
    op.create_index("ix_notification_done", "notification", ["done_at"])
    op.add_column("task", sa.Column("last_step", sa.BigInteger(), nullable=True))
    for name in ("step_at", "busy_at", "stuck_since"):
        op.add_column("task", sa.Column(name, sa.Float(), nullable=True))
    op.add_column("task", sa.Column("spent_usd", sa.Float(), nullable=False, server_default="0"))
    op.add_column("task", sa.Column("budget_warned", sa.Boolean(), nullable=False, server_default=sa.false()))
