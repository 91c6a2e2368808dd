"""Remember the machines whose disks clusters keep while they are stopped, and where ports of clusters are open.

`cluster_disk`: one row for each rank of a cluster, from the first stop of its machine until that is gone.
`cluster_ports`: one row for each region in which ports of a cluster were opened, until they are closed.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "cluster_disk",
        sa.Column("cluster_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("rank", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("instance_id", sa.String(), nullable=False),
        sa.Column("offer", sa.JSON(), nullable=False),
        sa.Column("price_per_hour", sa.Float(), nullable=False),
        sa.Column("stopped_at", sa.Float(), nullable=True),
        sa.Column("spent_usd", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("cluster_id", "rank"),
    )
    op.create_table(
        "cluster_ports",
        sa.Column("cluster_id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("cloud", sa.String(), nullable=False),
        sa.Column("region", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("cluster_id", "cloud", "region"),
    )
