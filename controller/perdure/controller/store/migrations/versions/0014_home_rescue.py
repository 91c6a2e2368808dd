"""Remember which machines save their homes because their cloud does not stop them.

One row for each node of an attempt of a cluster, from the refused stop until its machines are gone.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "home_rescue",
        sa.Column("cluster_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("rank", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("job_id", sa.Integer(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("begun_at", sa.Float(), nullable=False),
        sa.Column("saved_at", sa.Float(), nullable=True),
        sa.Column("problem", sa.Text(), nullable=False, server_default=""),
        sa.PrimaryKeyConstraint("cluster_id", "rank"),
    )
