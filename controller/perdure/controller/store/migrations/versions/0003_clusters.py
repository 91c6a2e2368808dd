"""Add clusters: machines that a user keeps, with a queue of jobs, and the slots that these jobs hold on them.

`job.cluster_id` and `job.cluster_job` name the cluster of a job and its number there. Managed jobs have neither.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("job", sa.Column("cluster_id", sa.Integer(), nullable=True))
    op.add_column("job", sa.Column("cluster_job", sa.Integer(), nullable=True))
    op.create_index(
        "ix_job_cluster",
        "job",
        ["cluster_id", "cluster_job"],
        sqlite_where=sa.text("cluster_id IS NOT NULL"),
        postgresql_where=sa.text("cluster_id IS NOT NULL"),
    )
    op.create_table(
        "cluster",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("active_name", sa.String(), nullable=True),
        sa.Column("user", sa.String(), nullable=False),
        sa.Column("wanted", sa.String(), nullable=False),
        sa.Column("cause", sa.String(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("launched_at", sa.Float(), nullable=False),
        sa.Column("active_at", sa.Float(), nullable=False),
        sa.Column("autostop_s", sa.Float(), nullable=True),
        sa.Column("autostop_down", sa.Boolean(), nullable=False),
        sa.Column("recover", sa.Boolean(), nullable=False),
        sa.Column("next_job", sa.Integer(), nullable=False),
        sa.Column("config", sa.JSON(), nullable=False),
        sa.Column("secrets", sa.LargeBinary(), nullable=True),
        sa.Column("resources", sa.String(), nullable=False),
        sa.Column("command", sa.Text(), nullable=False),
        sa.Column("idempotency_key", sa.String(), nullable=True),
        sa.Column("starts", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("active_name"),
        sa.UniqueConstraint("idempotency_key"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_cluster_name", "cluster", ["name", "id"])
    op.create_table(
        "cluster_slot",
        sa.Column("job_id", sa.Integer(), nullable=False),
        sa.Column("task_index", sa.Integer(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("cluster_id", sa.Integer(), nullable=False),
        sa.Column("host_job_id", sa.Integer(), nullable=False),
        sa.Column("host_generation", sa.Integer(), nullable=False),
        sa.Column("host_rank", sa.Integer(), nullable=False),
        sa.Column("ip", sa.String(), nullable=True),
        sa.Column("token", sa.String(), nullable=False),
        sa.Column("cpus", sa.Float(), nullable=False),
        sa.Column("memory_gib", sa.Float(), nullable=False),
        sa.Column("gpus", sa.Float(), nullable=False),
        sa.Column("gpu_shares", sa.JSON(), nullable=False),
        sa.Column("started_at", sa.Float(), nullable=False),
        sa.Column("stop_at", sa.Float(), nullable=True),
        sa.Column("ended_at", sa.Float(), nullable=True),
        sa.Column("gone_reason", sa.String(), nullable=True),
        sa.PrimaryKeyConstraint("job_id", "task_index", "generation", "rank"),
    )
    op.create_index("ix_cluster_slot_host", "cluster_slot", ["host_job_id", "host_generation", "ended_at"])
    op.create_index("ix_cluster_slot_cluster", "cluster_slot", ["cluster_id", "ended_at"])
