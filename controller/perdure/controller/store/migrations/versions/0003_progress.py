"""progress of a task, and sightings of offers

Only adds.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("task") as task:
        task.add_column(sa.Column("resumed_s", sa.Float(), nullable=False, server_default="0"))
        task.add_column(sa.Column("saved_s", sa.Float(), nullable=True))
        task.add_column(sa.Column("late_since", sa.Float(), nullable=True))
    op.create_table(
        "sighting",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("cloud", sa.String(), nullable=False),
        sa.Column("region", sa.String(), nullable=False),
        sa.Column("zone", sa.String(), nullable=False),
        sa.Column("instance_type", sa.String(), nullable=False),
        sa.Column("market", sa.String(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("available", sa.Boolean(), nullable=False),
        sa.Column("held_since", sa.Float(), nullable=True),
        sa.Column("started_s", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("sighting") as sighting:
        sighting.create_index("ix_sighting_at", ["at"], unique=False)


def downgrade() -> None:
    op.drop_table("sighting")
    with op.batch_alter_table("task") as task:
        task.drop_column("late_since")
        task.drop_column("saved_s")
        task.drop_column("resumed_s")
