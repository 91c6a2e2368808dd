"""The schema. Times are epoch seconds (UTC), enums are stored by name, money is USD.

The decision values of `perdure.recovery.job` are spread over `job`, `task`, `attempt` and `node`, in columns that have
the names of their fields (see `codec`). Columns that only the daemon uses are in the same tables. A change here needs a
migration (docs/contributing/migrations.md).
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, BigInteger, Boolean, Column, Index, Text, UniqueConstraint, false, text
from sqlmodel import Field, SQLModel

from perdure.controller.store.access.tables import AuditRow, TokenRow, UploadOwnerRow, UserRow
from perdure.controller.store.clusters.tables import (
    ClusterDiskRow,
    ClusterHomeRow,
    ClusterPortsRow,
    ClusterRow,
    ClusterSlotRow,
    HomeRescueRow,
    JobScheduleRow,
)
from perdure.controller.store.logs.series.tables import NodeMetricsRow
from perdure.controller.store.message_tables import NotificationRow, PeerMessageRow
from perdure.controller.store.services.tables import ReplicaRow, ServiceEventRow, ServiceRow, ServiceVersionRow

# With the tables below: importing this module imports the whole schema.
__all__ = [
    "AuditRow",
    "ClusterDiskRow",
    "ClusterHomeRow",
    "ClusterPortsRow",
    "ClusterRow",
    "ClusterSlotRow",
    "HomeRescueRow",
    "JobScheduleRow",
    "NodeMetricsRow",
    "NotificationRow",
    "PeerMessageRow",
    "ReplicaRow",
    "ServiceEventRow",
    "ServiceRow",
    "ServiceVersionRow",
    "TokenRow",
    "UploadOwnerRow",
    "UserRow",
]


class Meta(SQLModel, table=True):
    """Facts about this database, one row per name. `controller`: the id that tags every machine."""

    name: str = Field(primary_key=True)
    value: str


class ControllerRow(SQLModel, table=True):
    """One running daemon. It owns its jobs until `lease_until`; after that, another daemon may claim them."""

    __tablename__ = "controller"
    id: str = Field(primary_key=True)
    started_at: float
    lease_until: float
    endpoint: str = ""
    #: The newest schema revision that the daemon's code was written for.
    schema_revision: str = Field(default="", sa_column_kwargs={"server_default": ""})
    #: Where the other controllers reach it, and its certificate (PEM), if it has one.
    peer_url: str | None = None
    peer_certificate: str | None = None


class JobRow(SQLModel, table=True):
    """A job.

    `owner` and `lease_epoch` guard every write: each claim increments the epoch, so a late writer changes nothing.
    """

    __tablename__ = "job"
    __table_args__ = (
        Index("ix_job_owner_unfinalized", "owner", "finalized"),
        # Finds the few jobs that are not finalized among a million that are. The migration makes it partial on
        # PostgreSQL as well. A `postgresql_` option here would load that dialect, 2 MiB, into every daemon.
        Index("ix_job_unfinalized", "id", sqlite_where=text("finalized IS 0")),
        Index("ix_job_name_id", "name", "id"),  # on PostgreSQL, the migration orders it by bytes
        Index("ix_job_cluster", "cluster_id", "cluster_job", sqlite_where=text("cluster_id IS NOT NULL")),
        Index("ix_job_sweep", "sweep_id", sqlite_where=text("sweep_id IS NOT NULL")),
        Index("ix_job_user", "user", "id"),
        Index("ix_job_service", "service_id", sqlite_where=text("service_id IS NOT NULL")),
        Index(
            "ix_job_cluster_unfinalized",
            "cluster_id",
            "cluster_job",
            sqlite_where=text("cluster_id IS NOT NULL AND finalized IS 0"),
        ),
        {"sqlite_autoincrement": True},  # an id is never reused
    )
    id: int | None = Field(default=None, primary_key=True)
    name: str
    user: str = ""
    priority: int = 0
    num_tasks: int = 1
    submitted_at: float
    idempotency_key: str | None = Field(default=None, unique=True)
    batch_rank: int = 0
    batch_size: int = 1
    cancel_at: float | None = None
    cancel_grace_s: float | None = None
    owner: str | None = None
    lease_epoch: int = 0
    wake_at: float | None = None
    finalized: bool = False
    cleanup: str | None = Field(default=None, sa_column=Column(Text))
    #: The cluster that the job belongs to; None for a managed job.
    cluster_id: int | None = None
    #: The job's number on its cluster, from 1; None for the job that holds the cluster's machines.
    cluster_job: int | None = None
    #: The service that the job is a replica of; None for any other.
    service_id: int | None = None
    sweep_id: int | None = None  # the first of the jobs that were launched together; None: it was launched alone


class TaskRow(SQLModel, table=True):
    """One task of a job: what the user requested (`config`, `spec`, `secrets`) and its state."""

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
    requirements: list[Any] = Field(sa_column=Column(JSON, nullable=False))
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
    consecutive_refusals: int = 0
    has_run: bool = False
    wake_at: float | None = None
    started_at: float | None = None
    run_since: float | None = None
    run_seconds: float = 0.0
    ended_at: float | None = None
    storage_ready: bool = True
    storage_requested: bool = False
    resumed_s: float = Field(default=0.0, sa_column_kwargs={"server_default": "0"})
    saved_s: float | None = None
    late_since: float | None = None
    first_step: int | None = Field(default=None, sa_column=Column(BigInteger))
    first_step_s: float = Field(default=0.0, sa_column_kwargs={"server_default": "0"})
    estimated_s: float | None = None
    recovery_debt_until: float = Field(default=0.0, sa_column_kwargs={"server_default": "0"})
    last_step: int | None = Field(default=None, sa_column=Column(BigInteger))
    step_at: float | None = None
    busy_at: float | None = None
    stuck_since: float | None = None
    spent_usd: float = Field(default=0.0, sa_column_kwargs={"server_default": "0"})
    budget_warned: bool = Field(default=False, sa_column=Column(Boolean, nullable=False, server_default=false()))


class AttemptRow(SQLModel, table=True):
    """One attempt to run a task on one placement. Its last `state` is GONE; the row is kept as long as the job."""

    __tablename__ = "attempt"
    __table_args__ = (
        Index("ix_attempt_live", "job_id", sqlite_where=text("state != 'GONE'")),  # partial on PostgreSQL, too
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
    described_at: float | None = None
    describe_requested_at: float | None = None
    loss_confirmed: bool = Field(default=False, sa_column=Column(Boolean, nullable=False, server_default=false()))


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
    disconnected_since: float | None = None
    exit_code: int | None = None
    failed_stage: str | None = None
    interrupted: bool = False
    mount_lost: bool = False
    message: str = Field(default="", sa_column=Column(Text, nullable=False))
    notice_deadline: float | None = None
    gone_reason: str | None = None
    launched_at: float | None = None
    ended_at: float | None = None
    checkpoint_seq: int = 0
    boot_nonce: str | None = None  # of the agent that has traded the machine's boot token


class IntentRow(SQLModel, table=True):
    """An external action, recorded before it is performed.

    `request` never changes, and `token` makes the action idempotent.
    """

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
    try_count: int = 0
    wake_at: float | None = None
    done_at: float | None = None
    outcome: str | None = None
    error: str | None = Field(default=None, sa_column=Column(Text))


class UnavailableOfferRow(SQLModel, table=True):
    """An offer that was unavailable; see `perdure.recovery.market.unavailable.UnavailableOffer`."""

    __tablename__ = "unavailable_offer"
    id: int | None = Field(default=None, primary_key=True)
    job_id: int | None = None  # set if it concerns this job alone: its request was wrong, or only its node reports it
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


class OfferObservationRow(SQLModel, table=True):
    """Whether an offer was available at some time; see `perdure.recovery.market.history`."""

    __tablename__ = "offer_observation"
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


class RegionOffersRow(SQLModel, table=True):
    """The offers of a region, as one daemon fetched them from the cloud."""

    __tablename__ = "region_offers"
    cloud: str = Field(primary_key=True)
    region: str = Field(primary_key=True)
    #: Of `payload`: controllers of different versions keep rows of their own.
    format_version: int = Field(primary_key=True)
    fetched_at: float = 0.0  # 0 if the region was never fetched
    fetched_by: str = ""
    claimed_by: str = ""  # the daemon that fetches the region now
    claimed_until: float = 0.0
    payload: dict[str, Any] | None = Field(default=None, sa_column=Column(JSON))


class EventRow(SQLModel, table=True):
    """An entry of a job's timeline."""

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
    """A bucket that a job uses. A bucket that is `created` by the controller and not `persistent` may be removed."""

    __tablename__ = "bucket"
    __table_args__ = (UniqueConstraint("job_id", "store", "bucket"),)
    id: int | None = Field(default=None, primary_key=True)
    job_id: int = Field(index=True)
    store: str
    bucket: str
    persistent: bool = True
    created: bool = False
    removed_at: float | None = None


class AgentConnectionRow(SQLModel, table=True):
    """The daemon that holds a node's connection. `session_id` distinguishes a connection from the one before it."""

    __tablename__ = "agent_connection"
    job_id: int = Field(primary_key=True)
    task_index: int = Field(primary_key=True)
    generation: int = Field(primary_key=True)
    rank: int = Field(primary_key=True)
    controller: str = Field(index=True)
    session_id: str
    since: float
    #: The newest readiness report of a replica of a service, where several controllers share the database.
    probe: dict[str, Any] | None = Field(default=None, sa_column=Column(JSON(none_as_null=True), nullable=True))


class LogHeadRow(SQLModel, table=True):
    """The number of chunks in an attempt's log. Writers that append to the log lock this row."""

    __tablename__ = "log_head"
    job_id: int = Field(primary_key=True)
    task_index: int = Field(primary_key=True)
    generation: int = Field(primary_key=True)
    chunks: int = 0


class LogChunkRow(SQLModel, table=True):
    """A piece of a node's log, from byte `start`. `number` orders the pieces of all ranks as they were received."""

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


class PurgedCountRow(SQLModel, table=True):
    """How many tasks that ended with `status` retention has deleted; cached counts are corrected by it."""

    __tablename__ = "purged_count"
    status: str = Field(primary_key=True)
    tasks: int = 0


class BlobRow(SQLModel, table=True):
    """A file that every daemon can serve, by its sha256: an upload of a user, or a file that nodes run."""

    __tablename__ = "blob"
    digest: str = Field(primary_key=True)
    size: int = Field(sa_column=Column(BigInteger, nullable=False))
    last_used_at: float  # when it was last stored, or requested by a submission that is about to use it
    uploaded: bool = Field(default=False, sa_column=Column(Boolean, nullable=False, server_default=false()))


class BlobChunkRow(SQLModel, table=True):
    """A piece of a blob, at most 1 MiB."""

    __tablename__ = "blob_chunk"
    digest: str = Field(primary_key=True)
    number: int = Field(primary_key=True)
    data: bytes
