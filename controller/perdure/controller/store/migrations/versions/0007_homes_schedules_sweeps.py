"""Add the buckets that keep the homes of stopped clusters, schedules of jobs, and sweeps.

`job.sweep_id`: the first job of those that were launched together; null for a job that was launched alone.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "cluster_home",
        sa.Column("cluster_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("store", sa.String(), nullable=False),
        sa.Column("bucket", sa.String(), nullable=False),
        sa.Column("is_ready", sa.Boolean(), nullable=False),
        sa.Column("problem", sa.Text(), nullable=False),
        sa.Column("tried_at", sa.Float(), nullable=False),
        sa.Column("removed_at", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("cluster_id"),
    )
    op.create_table(
        "job_schedule",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("user", sa.String(), nullable=False),
        sa.Column("cron", sa.String(), nullable=False),
        sa.Column("time_zone", sa.String(), nullable=False),
        sa.Column("missed", sa.String(), nullable=False),
        sa.Column("overlaps", sa.Boolean(), nullable=False),
        sa.Column("paused", sa.Boolean(), nullable=False),
        sa.Column("tasks", sa.LargeBinary(), nullable=False),
        sa.Column("uploads", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("next_at", sa.Float(), nullable=True),
        sa.Column("last_due_at", sa.Float(), nullable=True),
        sa.Column("last_job_id", sa.Integer(), nullable=True),
        sa.Column("last_result", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("name"),
        sqlite_autoincrement=True,
    )
    op.add_column("job", sa.Column("sweep_id", sa.Integer(), nullable=True))
    op.create_index(
        "ix_job_sweep",
        "job",
        ["sweep_id"],
        sqlite_where=sa.text("sweep_id IS NOT NULL"),
        postgresql_where=sa.text("sweep_id IS NOT NULL"),
    )
