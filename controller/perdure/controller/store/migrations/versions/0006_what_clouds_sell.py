"""what clouds sell: what was fetched from each region, and when

Only adds.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "fetched",
        sa.Column("cloud", sa.String(), nullable=False),
        sa.Column("region", sa.String(), nullable=False),
        sa.Column("form", sa.Integer(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("by", sa.String(), nullable=False),
        sa.Column("claimed_by", sa.String(), nullable=False),
        sa.Column("claimed_until", sa.Float(), nullable=False),
        sa.Column("told", sa.JSON(), nullable=True),
        sa.PrimaryKeyConstraint("cloud", "region", "form"),
    )


def downgrade() -> None:
    op.drop_table("fetched")
