"""Let replicas of services get another version on their machines.

`service_replica.revision`: how many versions its node has got since it was launched. `changes_to`, `changes_at`: the
version that it gets next, once it has answered its requests, and since when. `service_version.failure`, `failed_at`:
why a replica that was kept could not start it, and when.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("service_replica", sa.Column("revision", sa.Integer(), nullable=False, server_default="0"))
    op.add_column("service_replica", sa.Column("changes_to", sa.Integer(), nullable=True))
    op.add_column("service_replica", sa.Column("changes_at", sa.Float(), nullable=True))
    op.add_column("service_version", sa.Column("failure", sa.Text(), nullable=True))
    op.add_column("service_version", sa.Column("failed_at", sa.Float(), nullable=True))
