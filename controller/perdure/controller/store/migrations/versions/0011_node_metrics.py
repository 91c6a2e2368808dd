"""Keep what nodes use and report over time.

`node_metrics`: one row for each node of an attempt. Its series has a bounded number of points, so the row has a bounded
size, however long the node runs.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "node_metrics",
        sa.Column("job_id", sa.Integer(), nullable=False),
        sa.Column("task_index", sa.Integer(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("updated_at", sa.Float(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "task_index", "generation", "rank"),
    )
    op.create_index("ix_node_metrics_updated_at", "node_metrics", ["updated_at"])
