"""many past jobs: indices for every list and count, what retention removed, and which files are users'

Only adds, but for one index that another contains.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_index("ix_job_name_id", "job", ["name", "id"], unique=False)
    op.drop_index("ix_job_name", "job")
    _partial_index("ix_job_unsettled", "job", ["id"], sqlite="settled IS 0", postgresql="settled IS false")
    _partial_index("ix_attempt_live", "attempt", ["job_id"], sqlite="state != 'GONE'", postgresql="state != 'GONE'")
    op.create_index("ix_task_ended", "task", ["status", "ended_at", "job_id"], unique=False)
    op.create_table(
        "removed",
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("tasks", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("status"),
    )
    op.add_column("file", sa.Column("uploaded", sa.Boolean(), nullable=False, server_default=sa.false()))


def downgrade() -> None:
    with op.batch_alter_table("file") as file:
        file.drop_column("uploaded")
    op.drop_table("removed")
    op.drop_index("ix_task_ended", "task")
    op.drop_index("ix_attempt_live", "attempt")
    op.drop_index("ix_job_unsettled", "job")
    op.create_index("ix_job_name", "job", ["name"], unique=False)
    op.drop_index("ix_job_name_id", "job")


def _partial_index(name: str, table: str, columns: list[str], *, sqlite: str, postgresql: str) -> None:
    op.create_index(
        name, table, columns, unique=False, sqlite_where=sa.text(sqlite), postgresql_where=sa.text(postgresql)
    )
