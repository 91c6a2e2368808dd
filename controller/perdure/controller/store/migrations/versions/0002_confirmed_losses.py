"""Add what bounds the word of a node: whether a cloud confirmed an attempt's loss, and a task's recovery debt.

`attempt.loss_confirmed`: until it is set, the loss counts against the offer for the attempt's own job alone.
`task.recovery_debt_until`: how often the task has recovered lately, for `limits.recoveries_per_hour`.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("attempt", sa.Column("loss_confirmed", sa.Boolean(), nullable=False, server_default=sa.false()))
    op.add_column("task", sa.Column("recovery_debt_until", sa.Float(), nullable=False, server_default="0"))
