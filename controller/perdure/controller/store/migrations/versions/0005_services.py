"""Add services: one endpoint, several replicas, each of which is a job (`job.service_id`)."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("job", sa.Column("service_id", sa.Integer(), nullable=True))
    op.create_index(
        "ix_job_service",
        "job",
        ["service_id"],
        sqlite_where=sa.text("service_id IS NOT NULL"),
        postgresql_where=sa.text("service_id IS NOT NULL"),
    )
    op.create_table(
        "service",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("active_name", sa.String(), nullable=True),
        sa.Column("user", sa.String(), nullable=False),
        sa.Column("wanted", sa.String(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("mode", sa.String(), nullable=False),
        sa.Column("port", sa.Integer(), nullable=True),
        sa.Column("secrets", sa.LargeBinary(), nullable=True),
        sa.Column("next_replica", sa.Integer(), nullable=False),
        sa.Column("target", sa.Integer(), nullable=False),
        sa.Column("above_since", sa.Float(), nullable=True),
        sa.Column("below_since", sa.Float(), nullable=True),
        sa.Column("ready_since", sa.Float(), nullable=True),
        sa.Column("idempotency_key", sa.String(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("active_name"),
        sa.UniqueConstraint("port"),
        sa.UniqueConstraint("idempotency_key"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_service_name", "service", ["name", "id"])
    op.create_table(
        "service_version",
        sa.Column("service_id", sa.Integer(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("section", sa.JSON(), nullable=False),
        sa.Column("app_port", sa.Integer(), nullable=False),
        sa.Column("resources", sa.String(), nullable=False),
        sa.Column("uses_spot", sa.Boolean(), nullable=False),
        sa.Column("config", sa.LargeBinary(), nullable=True),
        sa.Column("ready_at", sa.Float(), nullable=True),
        sa.Column("idempotency_key", sa.String(), nullable=True),
        sa.PrimaryKeyConstraint("service_id", "version"),
        sa.UniqueConstraint("idempotency_key"),
    )
    op.create_table(
        "service_replica",
        sa.Column("service_id", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("is_spot", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("job_id", sa.Integer(), nullable=True),
        sa.Column("ready_at", sa.Float(), nullable=True),
        sa.Column("retired_at", sa.Float(), nullable=True),
        sa.Column("retired_as", sa.String(), nullable=True),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("final_status", sa.String(), nullable=True),
        sa.Column("ended_at", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("service_id", "number"),
    )
    op.create_index("ix_service_replica_job", "service_replica", ["job_id"])
