"""what several controllers on one database share: letters, connections, logs, files

Only adds: a controller that knows 0001 alone goes on beside one that knows this.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_COUNT = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _attempt() -> list[sa.Column[int]]:
    return [sa.Column(name, sa.Integer(), nullable=False) for name in ("job_id", "task_index", "generation")]


def upgrade() -> None:
    with op.batch_alter_table("controller", schema=None) as batch_op:
        batch_op.add_column(sa.Column("knows", sa.String(), nullable=False, server_default=""))
    op.create_table(
        "letter",
        sa.Column("id", _COUNT, nullable=False),
        sa.Column("job_id", sa.Integer(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_letter_job_id", "letter", ["job_id"], unique=False)
    op.create_table(
        "connection",
        *_attempt(),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("controller", sa.String(), nullable=False),
        sa.Column("token", sa.String(), nullable=False),
        sa.Column("since", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "task_index", "generation", "rank"),
    )
    op.create_index("ix_connection_controller", "connection", ["controller"], unique=False)
    op.create_table(
        "log",
        *_attempt(),
        sa.Column("chunks", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "task_index", "generation"),
    )
    op.create_table(
        "log_chunk",
        *_attempt(),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("start", sa.BigInteger(), nullable=False),
        sa.Column("length", sa.Integer(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "task_index", "generation", "number"),
        sa.UniqueConstraint("job_id", "task_index", "generation", "rank", "start"),
    )
    op.create_table(
        "file",
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("digest"),
    )
    op.create_table(
        "file_chunk",
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("digest", "number"),
    )


def downgrade() -> None:
    for table in ("file_chunk", "file", "log_chunk", "log"):
        op.drop_table(table)
    op.drop_index("ix_connection_controller", "connection")
    op.drop_table("connection")
    op.drop_index("ix_letter_job_id", "letter")
    op.drop_table("letter")
    with op.batch_alter_table("controller", schema=None) as batch_op:
        batch_op.drop_column("knows")
