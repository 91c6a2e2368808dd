"""progress of a task"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("task") as task:
        task.add_column(sa.Column("resumed_s", sa.Float(), nullable=False, server_default="0"))
        task.add_column(sa.Column("saved_s", sa.Float(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("task") as task:
        task.drop_column("saved_s")
        task.drop_column("resumed_s")
