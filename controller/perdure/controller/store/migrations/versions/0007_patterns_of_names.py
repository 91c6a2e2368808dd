"""patterns of names: on PostgreSQL the index on names is in the order of their bytes, whatever language it sorts by

It finds a whole name as it did, and names that begin so, too. SQLite's is in that order already.
"""

from __future__ import annotations

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    _make_anew({"name": "text_pattern_ops"})


def downgrade() -> None:
    _make_anew({})


def _make_anew(ops: dict[str, str]) -> None:
    if op.get_bind().dialect.name == "postgresql":
        op.drop_index("ix_job_name_id", "job")
        op.create_index("ix_job_name_id", "job", ["name", "id"], unique=False, postgresql_ops=ops)
