"""Add who has traded the boot token of a machine: the digest of the number that its agent made.

`node.boot_nonce`: a second trade with another number ends the attempt.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("node", sa.Column("boot_nonce", sa.String(), nullable=True))
