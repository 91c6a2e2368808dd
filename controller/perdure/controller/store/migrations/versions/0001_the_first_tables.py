"""the first tables"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "attempt",
        sa.Column("job_id", sa.Integer(), nullable=False),
        sa.Column("task_index", sa.Integer(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("offer", sa.JSON(), nullable=False),
        sa.Column("requested_at", sa.Float(), nullable=False),
        sa.Column("booted_at", sa.Float(), nullable=True),
        sa.Column("running_at", sa.Float(), nullable=True),
        sa.Column("stopped_at", sa.Float(), nullable=True),
        sa.Column("gone_at", sa.Float(), nullable=True),
        sa.Column("drain_until", sa.Float(), nullable=True),
        sa.Column("reason", sa.String(), nullable=True),
        sa.Column("terminating", sa.Boolean(), nullable=False),
        sa.Column("failing_since", sa.Float(), nullable=True),
        sa.Column("checked_at", sa.Float(), nullable=True),
        sa.Column("check_asked_at", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("job_id", "task_index", "generation"),
    )
    op.create_table(
        "bucket",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("job_id", sa.Integer(), nullable=False),
        sa.Column("store", sa.String(), nullable=False),
        sa.Column("bucket", sa.String(), nullable=False),
        sa.Column("persistent", sa.Boolean(), nullable=False),
        sa.Column("created", sa.Boolean(), nullable=False),
        sa.Column("removed_at", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("job_id", "store", "bucket"),
    )
    with op.batch_alter_table("bucket", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_bucket_job_id"), ["job_id"], unique=False)

    op.create_table(
        "controller",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("started_at", sa.Float(), nullable=False),
        sa.Column("lease_until", sa.Float(), nullable=False),
        sa.Column("endpoint", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "event",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("job_id", sa.Integer(), nullable=False),
        sa.Column("task_index", sa.Integer(), nullable=True),
        sa.Column("generation", sa.Integer(), nullable=True),
        sa.Column("rank", sa.Integer(), nullable=True),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=True),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("event", schema=None) as batch_op:
        batch_op.create_index("ix_event_job", ["job_id", "id"], unique=False)

    op.create_table(
        "intent",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("job_id", sa.Integer(), nullable=False),
        sa.Column("task_index", sa.Integer(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("token", sa.String(), nullable=False),
        sa.Column("request", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("wake_at", sa.Float(), nullable=True),
        sa.Column("done_at", sa.Float(), nullable=True),
        sa.Column("outcome", sa.String(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("job_id", "task_index", "generation", "kind"),
    )
    with op.batch_alter_table("intent", schema=None) as batch_op:
        batch_op.create_index("ix_intent_open", ["done_at", "job_id"], unique=False)

    op.create_table(
        "job",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("user", sa.String(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("num_tasks", sa.Integer(), nullable=False),
        sa.Column("submitted_at", sa.Float(), nullable=False),
        sa.Column("key", sa.String(), nullable=True),
        sa.Column("batch_rank", sa.Integer(), nullable=False),
        sa.Column("batch_size", sa.Integer(), nullable=False),
        sa.Column("cancel_at", sa.Float(), nullable=True),
        sa.Column("cancel_grace_s", sa.Float(), nullable=True),
        sa.Column("owner", sa.String(), nullable=True),
        sa.Column("epoch", sa.Integer(), nullable=False),
        sa.Column("wake_at", sa.Float(), nullable=True),
        sa.Column("settled", sa.Boolean(), nullable=False),
        sa.Column("cleanup", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("key"),
        sqlite_autoincrement=True,
    )
    with op.batch_alter_table("job", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_job_name"), ["name"], unique=False)
        batch_op.create_index("ix_job_owner_unsettled", ["owner", "settled"], unique=False)

    op.create_table(
        "meta",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("value", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "node",
        sa.Column("job_id", sa.Integer(), nullable=False),
        sa.Column("task_index", sa.Integer(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("phase", sa.String(), nullable=False),
        sa.Column("instance_id", sa.String(), nullable=True),
        sa.Column("ip", sa.String(), nullable=True),
        sa.Column("connected", sa.Boolean(), nullable=False),
        sa.Column("silent_since", sa.Float(), nullable=True),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("failed_stage", sa.String(), nullable=True),
        sa.Column("interrupted", sa.Boolean(), nullable=False),
        sa.Column("mount_lost", sa.Boolean(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("notice_deadline", sa.Float(), nullable=True),
        sa.Column("gone", sa.String(), nullable=True),
        sa.Column("launched_at", sa.Float(), nullable=True),
        sa.Column("ended_at", sa.Float(), nullable=True),
        sa.Column("checkpoint_seq", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "task_index", "generation", "rank"),
    )
    with op.batch_alter_table("node", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_node_instance_id"), ["instance_id"], unique=False)

    op.create_table(
        "refusal",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("job_id", sa.Integer(), nullable=True),
        sa.Column("cloud", sa.String(), nullable=False),
        sa.Column("region", sa.String(), nullable=True),
        sa.Column("zone", sa.String(), nullable=True),
        sa.Column("instance_type", sa.String(), nullable=True),
        sa.Column("market", sa.String(), nullable=True),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("code", sa.String(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("until", sa.Float(), nullable=False),
        sa.Column("from_preemption", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    with op.batch_alter_table("refusal", schema=None) as batch_op:
        batch_op.create_index(batch_op.f("ix_refusal_until"), ["until"], unique=False)

    op.create_table(
        "task",
        sa.Column("job_id", sa.Integer(), nullable=False),
        sa.Column("index", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("task_id", sa.String(), nullable=False),
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("config", sa.JSON(), nullable=False),
        sa.Column("spec", sa.JSON(), nullable=False),
        sa.Column("secrets", sa.LargeBinary(), nullable=True),
        sa.Column("needs", sa.JSON(), nullable=False),
        sa.Column("recovery", sa.JSON(), nullable=False),
        sa.Column("num_nodes", sa.Integer(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("outcome", sa.String(), nullable=True),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("next_generation", sa.Integer(), nullable=False),
        sa.Column("last_offer", sa.JSON(), nullable=True),
        sa.Column("preempted_from", sa.JSON(), nullable=True),
        sa.Column("recovery_count", sa.Integer(), nullable=False),
        sa.Column("restarts_on_errors", sa.Integer(), nullable=False),
        sa.Column("refused_in_a_row", sa.Integer(), nullable=False),
        sa.Column("has_run", sa.Boolean(), nullable=False),
        sa.Column("wake_at", sa.Float(), nullable=True),
        sa.Column("started_at", sa.Float(), nullable=True),
        sa.Column("run_since", sa.Float(), nullable=True),
        sa.Column("run_seconds", sa.Float(), nullable=False),
        sa.Column("ended_at", sa.Float(), nullable=True),
        sa.Column("storage_ready", sa.Boolean(), nullable=False),
        sa.Column("storage_asked", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["job_id"],
            ["job.id"],
        ),
        sa.PrimaryKeyConstraint("job_id", "index"),
    )
    with op.batch_alter_table("task", schema=None) as batch_op:
        batch_op.create_index("ix_task_status_job", ["status", "job_id"], unique=False)
        batch_op.create_index(batch_op.f("ix_task_task_id"), ["task_id"], unique=False)


def downgrade() -> None:
    with op.batch_alter_table("task", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_task_task_id"))
        batch_op.drop_index("ix_task_status_job")

    op.drop_table("task")
    with op.batch_alter_table("refusal", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_refusal_until"))

    op.drop_table("refusal")
    with op.batch_alter_table("node", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_node_instance_id"))

    op.drop_table("node")
    op.drop_table("meta")
    with op.batch_alter_table("job", schema=None) as batch_op:
        batch_op.drop_index("ix_job_owner_unsettled")
        batch_op.drop_index(batch_op.f("ix_job_name"))

    op.drop_table("job")
    with op.batch_alter_table("intent", schema=None) as batch_op:
        batch_op.drop_index("ix_intent_open")

    op.drop_table("intent")
    with op.batch_alter_table("event", schema=None) as batch_op:
        batch_op.drop_index("ix_event_job")

    op.drop_table("event")
    op.drop_table("controller")
    with op.batch_alter_table("bucket", schema=None) as batch_op:
        batch_op.drop_index(batch_op.f("ix_bucket_job_id"))

    op.drop_table("bucket")
    op.drop_table("attempt")
