"""Add indexes for what is read each second: the unfinalized jobs of a cluster, and the slots that are held.

Rows of both stay after their end, so the queries of a cluster slowed down with each job that it had ever run.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

_UNFINALIZED_SQLITE = sa.text("cluster_id IS NOT NULL AND finalized IS 0")
_UNFINALIZED_POSTGRESQL = sa.text("cluster_id IS NOT NULL AND finalized IS false")
_HELD = sa.text("ended_at IS NULL")


def upgrade() -> None:
    op.create_index(
        "ix_job_cluster_unfinalized",
        "job",
        ["cluster_id", "cluster_job"],
        sqlite_where=_UNFINALIZED_SQLITE,
        postgresql_where=_UNFINALIZED_POSTGRESQL,
    )
    op.create_index("ix_cluster_slot_held", "cluster_slot", ["cluster_id"], sqlite_where=_HELD, postgresql_where=_HELD)
