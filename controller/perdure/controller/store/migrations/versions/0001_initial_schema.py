"""The initial schema."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_BIG_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    _create_controllers()
    _create_jobs()
    _create_attempts()
    _create_intents()
    _create_market()
    _create_events()
    _create_buckets()
    _create_logs()
    _create_blobs()


def _create_controllers() -> None:
    op.create_table(
        "meta",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("value", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "controller",
        sa.Column("id", sa.String(), nullable=False),
        sa.Column("started_at", sa.Float(), nullable=False),
        sa.Column("lease_until", sa.Float(), nullable=False),
        sa.Column("endpoint", sa.String(), nullable=False),
        sa.Column("schema_revision", sa.String(), nullable=False, server_default=""),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "peer_message",
        sa.Column("id", _BIG_ID, nullable=False),
        sa.Column("job_id", sa.Integer(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("body", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_peer_message_job_id", "peer_message", ["job_id"])
    op.create_table(
        "agent_connection",
        *_attempt_columns(),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("controller", sa.String(), nullable=False),
        sa.Column("session_id", sa.String(), nullable=False),
        sa.Column("since", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "task_index", "generation", "rank"),
    )
    op.create_index("ix_agent_connection_controller", "agent_connection", ["controller"])


def _create_jobs() -> None:
    op.create_table(
        "job",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("user", sa.String(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("num_tasks", sa.Integer(), nullable=False),
        sa.Column("submitted_at", sa.Float(), nullable=False),
        sa.Column("idempotency_key", sa.String(), nullable=True),
        sa.Column("batch_rank", sa.Integer(), nullable=False),
        sa.Column("batch_size", sa.Integer(), nullable=False),
        sa.Column("cancel_at", sa.Float(), nullable=True),
        sa.Column("cancel_grace_s", sa.Float(), nullable=True),
        sa.Column("owner", sa.String(), nullable=True),
        sa.Column("lease_epoch", sa.Integer(), nullable=False),
        sa.Column("wake_at", sa.Float(), nullable=True),
        sa.Column("finalized", sa.Boolean(), nullable=False),
        sa.Column("cleanup", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("idempotency_key"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_job_owner_unfinalized", "job", ["owner", "finalized"])
    _create_partial_index("ix_job_unfinalized", "job", ["id"], sqlite="finalized IS 0", postgresql="finalized IS false")
    # By bytes, whatever language the database sorts by: so the index finds the names that begin with a prefix.
    op.create_index("ix_job_name_id", "job", ["name", "id"], postgresql_ops={"name": "text_pattern_ops"})
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
        sa.Column("requirements", sa.JSON(), nullable=False),
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
        sa.Column("consecutive_refusals", sa.Integer(), nullable=False),
        sa.Column("has_run", sa.Boolean(), nullable=False),
        sa.Column("wake_at", sa.Float(), nullable=True),
        sa.Column("started_at", sa.Float(), nullable=True),
        sa.Column("run_since", sa.Float(), nullable=True),
        sa.Column("run_seconds", sa.Float(), nullable=False),
        sa.Column("ended_at", sa.Float(), nullable=True),
        sa.Column("storage_ready", sa.Boolean(), nullable=False),
        sa.Column("storage_requested", sa.Boolean(), nullable=False),
        sa.Column("resumed_s", sa.Float(), nullable=False, server_default="0"),
        sa.Column("saved_s", sa.Float(), nullable=True),
        sa.Column("late_since", sa.Float(), nullable=True),
        sa.Column("first_step", sa.BigInteger(), nullable=True),
        sa.Column("first_step_s", sa.Float(), nullable=False, server_default="0"),
        sa.Column("estimated_s", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("job_id", "index"),
        sa.ForeignKeyConstraint(["job_id"], ["job.id"]),
    )
    op.create_index("ix_task_task_id", "task", ["task_id"])
    op.create_index("ix_task_status_job", "task", ["status", "job_id"])
    op.create_index("ix_task_ended", "task", ["status", "ended_at", "job_id"])
    op.create_table(
        "purged_count",
        sa.Column("status", sa.String(), nullable=False),
        sa.Column("tasks", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("status"),
    )


def _create_attempts() -> None:
    op.create_table(
        "attempt",
        *_attempt_columns(),
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
        sa.Column("described_at", sa.Float(), nullable=True),
        sa.Column("describe_requested_at", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("job_id", "task_index", "generation"),
    )
    _create_partial_index(
        "ix_attempt_live", "attempt", ["job_id"], sqlite="state != 'GONE'", postgresql="state != 'GONE'"
    )
    op.create_table(
        "node",
        *_attempt_columns(),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("phase", sa.String(), nullable=False),
        sa.Column("instance_id", sa.String(), nullable=True),
        sa.Column("ip", sa.String(), nullable=True),
        sa.Column("connected", sa.Boolean(), nullable=False),
        sa.Column("disconnected_since", sa.Float(), nullable=True),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("failed_stage", sa.String(), nullable=True),
        sa.Column("interrupted", sa.Boolean(), nullable=False),
        sa.Column("mount_lost", sa.Boolean(), nullable=False),
        sa.Column("message", sa.Text(), nullable=False),
        sa.Column("notice_deadline", sa.Float(), nullable=True),
        sa.Column("gone_reason", sa.String(), nullable=True),
        sa.Column("launched_at", sa.Float(), nullable=True),
        sa.Column("ended_at", sa.Float(), nullable=True),
        sa.Column("checkpoint_seq", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "task_index", "generation", "rank"),
    )
    op.create_index("ix_node_instance_id", "node", ["instance_id"])


def _create_intents() -> None:
    op.create_table(
        "intent",
        sa.Column("id", sa.Integer(), nullable=False),
        *_attempt_columns(),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("token", sa.String(), nullable=False),
        sa.Column("request", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("try_count", sa.Integer(), nullable=False),
        sa.Column("wake_at", sa.Float(), nullable=True),
        sa.Column("done_at", sa.Float(), nullable=True),
        sa.Column("outcome", sa.String(), nullable=True),
        sa.Column("error", sa.Text(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("job_id", "task_index", "generation", "kind"),
    )
    op.create_index("ix_intent_open", "intent", ["done_at", "job_id"])


def _create_market() -> None:
    op.create_table(
        "unavailable_offer",
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
    op.create_index("ix_unavailable_offer_until", "unavailable_offer", ["until"])
    op.create_table(
        "offer_observation",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("cloud", sa.String(), nullable=False),
        sa.Column("region", sa.String(), nullable=False),
        sa.Column("zone", sa.String(), nullable=False),
        sa.Column("instance_type", sa.String(), nullable=False),
        sa.Column("market", sa.String(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sa.Column("available", sa.Boolean(), nullable=False),
        sa.Column("held_since", sa.Float(), nullable=True),
        sa.Column("started_s", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_offer_observation_at", "offer_observation", ["at"])
    op.create_table(
        "region_offers",
        sa.Column("cloud", sa.String(), nullable=False),
        sa.Column("region", sa.String(), nullable=False),
        sa.Column("format_version", sa.Integer(), nullable=False),
        sa.Column("fetched_at", sa.Float(), nullable=False),
        sa.Column("fetched_by", sa.String(), nullable=False),
        sa.Column("claimed_by", sa.String(), nullable=False),
        sa.Column("claimed_until", sa.Float(), nullable=False),
        sa.Column("payload", sa.JSON(), nullable=True),
        sa.PrimaryKeyConstraint("cloud", "region", "format_version"),
    )


def _create_events() -> None:
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
    op.create_index("ix_event_job", "event", ["job_id", "id"])


def _create_buckets() -> None:
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
    op.create_index("ix_bucket_job_id", "bucket", ["job_id"])


def _create_logs() -> None:
    op.create_table(
        "log_head",
        *_attempt_columns(),
        sa.Column("chunks", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "task_index", "generation"),
    )
    op.create_table(
        "log_chunk",
        *_attempt_columns(),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("rank", sa.Integer(), nullable=False),
        sa.Column("start", sa.BigInteger(), nullable=False),
        sa.Column("length", sa.Integer(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("job_id", "task_index", "generation", "number"),
        sa.UniqueConstraint("job_id", "task_index", "generation", "rank", "start"),
    )


def _create_blobs() -> None:
    op.create_table(
        "blob",
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("size", sa.BigInteger(), nullable=False),
        sa.Column("last_used_at", sa.Float(), nullable=False),
        sa.Column("uploaded", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.PrimaryKeyConstraint("digest"),
    )
    op.create_table(
        "blob_chunk",
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("data", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("digest", "number"),
    )


def _attempt_columns() -> list[sa.Column[Any]]:
    """The columns that identify an attempt."""
    return [sa.Column(name, sa.Integer(), nullable=False) for name in ("job_id", "task_index", "generation")]


def _create_partial_index(name: str, table: str, columns: list[str], *, sqlite: str, postgresql: str) -> None:
    op.create_index(name, table, columns, sqlite_where=sa.text(sqlite), postgresql_where=sa.text(postgresql))
