"""how much work a task is, by its steps

Only adds.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table("task") as task:
        task.add_column(sa.Column("first_step", sa.BigInteger(), nullable=True))
        task.add_column(sa.Column("first_step_s", sa.Float(), nullable=False, server_default="0"))
        task.add_column(sa.Column("estimated_s", sa.Float(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table("task") as task:
        task.drop_column("estimated_s")
        task.drop_column("first_step_s")
        task.drop_column("first_step")
