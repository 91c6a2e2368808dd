"""The schema. Times are epoch seconds (UTC); enums are their names; money is USD.

The decision values of `perdure.recovery.job` are spread over `job`, `task`, `attempt` and `node`, in columns named as
the fields are (see `codec`). What only the daemon needs stands beside them.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, BigInteger, Boolean, Column, Index, Integer, Text, UniqueConstraint, false, text
from sqlmodel import Field, SQLModel

# A counter with no end in sight. SQLite counts only an INTEGER by itself, and there that has 64 bits.
_Count = BigInteger().with_variant(Integer(), "sqlite")


class Meta(SQLModel, table=True):
    """Facts about this database: one row per name (`controller`: the name written on every machine as a tag)."""

    name: str = Field(primary_key=True)
    value: str


class ControllerRow(SQLModel, table=True):
    """One running daemon. Its jobs are its own until `lease_until`; then another may claim them.

    `knows`: the newest schema revision that its code was written for.
    """

    __tablename__ = "controller"
    id: str = Field(primary_key=True)
    started_at: float
    lease_until: float
    endpoint: str = ""
    knows: str = Field(default="", sa_column_kwargs={"server_default": ""})


class JobRow(SQLModel, table=True):
    """A job. `owner` and `epoch` guard every write: an epoch grows at each claim, so a late writer changes nothing."""

    __tablename__ = "job"
    __table_args__ = (
        Index("ix_job_owner_unsettled", "owner", "settled"),
        # Not the past: among a million jobs that have settled, those that have not are found at once. On PostgreSQL
        # too, by migration 0005: to say so here would load what speaks with it, 2 MiB, into every daemon.
        Index("ix_job_unsettled", "id", sqlite_where=text("settled IS 0")),
        Index("ix_job_name_id", "name", "id"),  # on PostgreSQL in the order of bytes, by migration 0007
        {"sqlite_autoincrement": True},  # an id, once given, is never given again
    )
    id: int | None = Field(default=None, primary_key=True)
    name: str
    user: str = ""
    priority: int = 0
    num_tasks: int = 1
    submitted_at: float
    key: str | None = Field(default=None, unique=True)
    batch_rank: int = 0
    batch_size: int = 1
    cancel_at: float | None = None
    cancel_grace_s: float | None = None
    owner: str | None = None
    epoch: int = 0
    wake_at: float | None = None
    settled: bool = False
    cleanup: str | None = Field(default=None, sa_column=Column(Text))


class TaskRow(SQLModel, table=True):
    """One task: what was asked (`config`, `env`, `secrets`), and where it stands."""

    __tablename__ = "task"
    __table_args__ = (
        Index("ix_task_status_job", "status", "job_id"),
        Index("ix_task_ended", "status", "ended_at", "job_id"),
    )
    job_id: int = Field(primary_key=True, foreign_key="job.id")
    index: int = Field(primary_key=True)
    name: str = ""
    task_id: str = Field(index=True)
    status: str
    config: dict[str, Any] = Field(sa_column=Column(JSON, nullable=False))
    spec: dict[str, Any] = Field(sa_column=Column(JSON, nullable=False))
    secrets: bytes | None = None
    needs: list[Any] = Field(sa_column=Column(JSON, nullable=False))
    recovery: dict[str, Any] = Field(sa_column=Column(JSON, nullable=False))
    num_nodes: int = 1
    state: str
    reason: str
    outcome: str | None = None
    message: str = Field(default="", sa_column=Column(Text, nullable=False))
    next_generation: int = 1
    last_offer: dict[str, Any] | None = Field(default=None, sa_column=Column(JSON))
    preempted_from: dict[str, Any] | None = Field(default=None, sa_column=Column(JSON))
    recovery_count: int = 0
    restarts_on_errors: int = 0
    refused_in_a_row: int = 0
    has_run: bool = False
    wake_at: float | None = None
    started_at: float | None = None
    run_since: float | None = None
    run_seconds: float = 0.0
    ended_at: float | None = None
    storage_ready: bool = True
    storage_asked: bool = False
    resumed_s: float = 0.0
    saved_s: float | None = None
    late_since: float | None = None
    first_step: int | None = Field(default=None, sa_column=Column(BigInteger))
    first_step_s: float = 0.0
    estimated_s: float | None = None


class AttemptRow(SQLModel, table=True):
    """One try at a task on one placement. Kept as long as its job; `state` GONE is its end."""

    __tablename__ = "attempt"
    __table_args__ = (
        Index("ix_attempt_live", "job_id", sqlite_where=text("state != 'GONE'")),  # on PostgreSQL by migration 0005
    )
    job_id: int = Field(primary_key=True)
    task_index: int = Field(primary_key=True)
    generation: int = Field(primary_key=True)
    state: str
    offer: dict[str, Any] = Field(sa_column=Column(JSON, nullable=False))
    requested_at: float
    booted_at: float | None = None
    running_at: float | None = None
    stopped_at: float | None = None
    gone_at: float | None = None
    drain_until: float | None = None
    reason: str | None = None
    terminating: bool = False
    failing_since: float | None = None
    checked_at: float | None = None
    check_asked_at: float | None = None


class NodeRow(SQLModel, table=True):
    """One machine of an attempt."""

    __tablename__ = "node"
    job_id: int = Field(primary_key=True)
    task_index: int = Field(primary_key=True)
    generation: int = Field(primary_key=True)
    rank: int = Field(primary_key=True)
    phase: str
    instance_id: str | None = Field(default=None, index=True)
    ip: str | None = None
    connected: bool = False
    silent_since: float | None = None
    exit_code: int | None = None
    failed_stage: str | None = None
    interrupted: bool = False
    mount_lost: bool = False
    message: str = Field(default="", sa_column=Column(Text, nullable=False))
    notice_deadline: float | None = None
    gone: str | None = None
    launched_at: float | None = None
    ended_at: float | None = None
    checkpoint_seq: int = 0


class IntentRow(SQLModel, table=True):
    """Something to do outside, written down before it is done. `request` is frozen; `token` makes a repeat harmless."""

    __tablename__ = "intent"
    __table_args__ = (
        UniqueConstraint("job_id", "task_index", "generation", "kind"),
        Index("ix_intent_open", "done_at", "job_id"),
    )
    id: int | None = Field(default=None, primary_key=True)
    job_id: int
    task_index: int
    generation: int
    kind: str
    token: str
    request: dict[str, Any] = Field(sa_column=Column(JSON, nullable=False))
    created_at: float
    tries: int = 0
    wake_at: float | None = None
    done_at: float | None = None
    outcome: str | None = None
    error: str | None = Field(default=None, sa_column=Column(Text))


class RefusalRow(SQLModel, table=True):
    """An offer that said no; see `perdure.recovery.market.Refusal`."""

    __tablename__ = "refusal"
    id: int | None = Field(default=None, primary_key=True)
    job_id: int | None = None  # set where only this job is concerned
    cloud: str
    region: str | None = None
    zone: str | None = None
    instance_type: str | None = None
    market: str | None = None
    kind: str
    code: str = ""
    message: str = Field(default="", sa_column=Column(Text, nullable=False))
    at: float
    until: float = Field(index=True)
    from_preemption: bool = False


class SightingRow(SQLModel, table=True):
    """An offer seen to be there or not; see `perdure.recovery.history.Sighting`. Read again when a daemon starts."""

    __tablename__ = "sighting"
    id: int | None = Field(default=None, primary_key=True)
    cloud: str
    region: str
    zone: str
    instance_type: str
    market: str
    at: float = Field(index=True)
    available: bool
    held_since: float | None = None
    started_s: float | None = None


class FetchedRow(SQLModel, table=True):
    """What a region of a cloud told that it sells. `form`: of `told`, so that versions side by side keep their own.

    `at`: when it was told, 0 where it never was; `by` which daemon. Who is asking it now has `claimed` it.
    """

    __tablename__ = "fetched"
    cloud: str = Field(primary_key=True)
    region: str = Field(primary_key=True)
    form: int = Field(primary_key=True)
    at: float = 0.0
    by: str = ""
    claimed_by: str = ""
    claimed_until: float = 0.0
    told: dict[str, Any] | None = Field(default=None, sa_column=Column(JSON))


class EventRow(SQLModel, table=True):
    """A line of a job's timeline."""

    __tablename__ = "event"
    __table_args__ = (Index("ix_event_job", "job_id", "id"),)
    id: int | None = Field(default=None, primary_key=True)
    job_id: int
    task_index: int | None = None
    generation: int | None = None
    rank: int | None = None
    at: float
    kind: str
    reason: str | None = None
    message: str = Field(default="", sa_column=Column(Text, nullable=False))
    data: dict[str, Any] = Field(default_factory=dict, sa_column=Column(JSON, nullable=False))


class BucketRow(SQLModel, table=True):
    """A bucket that a job uses. `created`: we made it, so we may remove it when it is not `persistent`."""

    __tablename__ = "bucket"
    __table_args__ = (UniqueConstraint("job_id", "store", "bucket"),)
    id: int | None = Field(default=None, primary_key=True)
    job_id: int = Field(index=True)
    store: str
    bucket: str
    persistent: bool = True
    created: bool = False
    removed_at: float | None = None


class LetterRow(SQLModel, table=True):
    """What came to a daemon for a job in another's hands. Deleted by the transaction that records its turn."""

    __tablename__ = "letter"
    id: int | None = Field(default=None, sa_column=Column(_Count, primary_key=True))
    job_id: int = Field(index=True)
    at: float
    body: dict[str, Any] = Field(sa_column=Column(JSON, nullable=False))


class ConnectionRow(SQLModel, table=True):
    """Which daemon holds a node's connection. `token` is the connection's own: it tells an old one from the next."""

    __tablename__ = "connection"
    job_id: int = Field(primary_key=True)
    task_index: int = Field(primary_key=True)
    generation: int = Field(primary_key=True)
    rank: int = Field(primary_key=True)
    controller: str = Field(index=True)
    token: str
    since: float


class LogRow(SQLModel, table=True):
    """How much is kept of an attempt's log: the row that those who append to it wait for."""

    __tablename__ = "log"
    job_id: int = Field(primary_key=True)
    task_index: int = Field(primary_key=True)
    generation: int = Field(primary_key=True)
    chunks: int = 0


class LogChunkRow(SQLModel, table=True):
    """A piece of a node's log, from byte `start` of it. `number` orders the pieces of all ranks as they came."""

    __tablename__ = "log_chunk"
    __table_args__ = (UniqueConstraint("job_id", "task_index", "generation", "rank", "start"),)
    job_id: int = Field(primary_key=True)
    task_index: int = Field(primary_key=True)
    generation: int = Field(primary_key=True)
    number: int = Field(primary_key=True)
    rank: int
    start: int = Field(sa_column=Column(BigInteger, nullable=False))
    length: int
    data: bytes


class RemovedRow(SQLModel, table=True):
    """How many tasks that ended with `status` retention has removed: counts made before it are put right by this."""

    __tablename__ = "removed"
    status: str = Field(primary_key=True)
    tasks: int = 0


class FileRow(SQLModel, table=True):
    """A file that every daemon can serve, by its sha256: what users `uploaded`, and what nodes run.

    `at`: when it was last handed in, or asked for by somebody about to use it.
    """

    __tablename__ = "file"
    digest: str = Field(primary_key=True)
    size: int = Field(sa_column=Column(BigInteger, nullable=False))
    at: float
    uploaded: bool = Field(default=False, sa_column=Column(Boolean, nullable=False, server_default=false()))


class FileChunkRow(SQLModel, table=True):
    """A piece of a file, at most 1 MiB."""

    __tablename__ = "file_chunk"
    digest: str = Field(primary_key=True)
    number: int = Field(primary_key=True)
    data: bytes
