"""The tables of clusters and of schedules, in the style of `tables`: times are epoch seconds (UTC)."""

from __future__ import annotations

from typing import Any

from sqlalchemy import JSON, Column, Index, Text, text
from sqlmodel import Field, SQLModel


class ClusterRow(SQLModel, table=True):
    """A cluster: machines that a user keeps, and a queue of jobs for them.

    Its machines are held by a job of its own (`job.cluster_id`, without `cluster_job`): the newest one, since each
    start launches another.
    """

    __tablename__ = "cluster"
    __table_args__ = (Index("ix_cluster_name", "name", "id"), {"sqlite_autoincrement": True})
    id: int | None = Field(default=None, primary_key=True)
    name: str
    #: The name while the cluster exists, None after it is down: a name may be used again.
    active_name: str | None = Field(default=None, unique=True)
    user: str = ""
    #: What the user requested: UP, STOPPED or DOWN.
    wanted: str
    #: Why, if the user did not request it: "autostop", "failed".
    cause: str = ""
    created_at: float
    launched_at: float
    #: When something last used it, apart from jobs: a launch, a start, a session of a user, or setting autostop.
    active_at: float
    autostop_s: float | None = None
    autostop_down: bool = False
    recover: bool = False
    next_job: int = 1
    #: The task that holds the machines, as the user sent it, and its secrets.
    config: dict[str, Any] = Field(sa_column=Column(JSON, nullable=False))
    secrets: bytes | None = None
    #: A short form of the requested machines, and the command line or file that launched it.
    resources: str = ""
    command: str = Field(default="", sa_column=Column(Text, nullable=False))
    idempotency_key: str | None = Field(default=None, unique=True)
    #: How often it was started: part of the key of the job that holds its machines.
    starts: int = 0


class ClusterHomeRow(SQLModel, table=True):
    """The bucket that keeps the homes of a cluster's machines while it is stopped. Recorded before it is created."""

    __tablename__ = "cluster_home"
    cluster_id: int = Field(primary_key=True, sa_column_kwargs={"autoincrement": False})
    store: str
    bucket: str
    is_ready: bool = False
    #: Why it could not be created; tried again later.
    problem: str = Field(default="", sa_column=Column(Text, nullable=False))
    tried_at: float
    removed_at: float | None = None


class ClusterDiskRow(SQLModel, table=True):
    """A machine whose disk a cluster keeps over stop and start. Recorded when it has been stopped the first time."""

    __tablename__ = "cluster_disk"
    cluster_id: int = Field(primary_key=True, sa_column_kwargs={"autoincrement": False})
    rank: int = Field(primary_key=True, sa_column_kwargs={"autoincrement": False})
    instance_id: str
    #: Of the machine.
    offer: dict[str, Any] = Field(sa_column=Column(JSON, nullable=False))
    #: Of the disk, while the machine is stopped.
    price_per_hour: float
    #: Since when the machine is stopped; None while it runs, or if it is gone.
    stopped_at: float | None = None
    #: What the disk cost while the machine was stopped before.
    spent_usd: float


class HomeRescueRow(SQLModel, table=True):
    """A machine that its cloud does not stop: its home is saved before it is ended. Removed once it is gone."""

    __tablename__ = "home_rescue"
    cluster_id: int = Field(primary_key=True, sa_column_kwargs={"autoincrement": False})
    rank: int = Field(primary_key=True, sa_column_kwargs={"autoincrement": False})
    #: The attempt whose machine it is.
    job_id: int
    generation: int
    begun_at: float
    saved_at: float | None = None
    #: Why the node could not save it.
    problem: str = Field(default="", sa_column=Column(Text, nullable=False, server_default=""))


class ClusterPortsRow(SQLModel, table=True):
    """A region in which ports of a cluster are open to the internet. Recorded before they are opened."""

    __tablename__ = "cluster_ports"
    cluster_id: int = Field(primary_key=True, sa_column_kwargs={"autoincrement": False})
    cloud: str = Field(primary_key=True)
    region: str = Field(primary_key=True)


class ClusterSlotRow(SQLModel, table=True):
    """One node of a job of a cluster: a share of a node of the job that holds the cluster's machines.

    The rows are the memory of `clouds.slot_cloud`, whose "machines" are slots.
    """

    __tablename__ = "cluster_slot"
    __table_args__ = (
        Index("ix_cluster_slot_host", "host_job_id", "host_generation", "ended_at"),
        Index("ix_cluster_slot_cluster", "cluster_id", "ended_at"),
        Index("ix_cluster_slot_held", "cluster_id", sqlite_where=text("ended_at IS NULL")),  # partial, as above
    )
    job_id: int = Field(primary_key=True)
    task_index: int = Field(primary_key=True)
    generation: int = Field(primary_key=True)
    rank: int = Field(primary_key=True)
    cluster_id: int
    host_job_id: int
    host_generation: int
    host_rank: int
    ip: str | None = None
    token: str
    cpus: float
    memory_gib: float
    gpus: float
    #: GPU → share, as pairs.
    gpu_shares: list[Any] = Field(sa_column=Column(JSON, nullable=False))
    started_at: float
    stop_at: float | None = None
    ended_at: float | None = None
    gone_reason: str | None = None


class JobScheduleRow(SQLModel, table=True):
    """A job that is launched again and again."""

    __tablename__ = "job_schedule"
    __table_args__ = ({"sqlite_autoincrement": True},)
    id: int | None = Field(default=None, primary_key=True)
    name: str = Field(unique=True)
    user: str
    cron: str
    time_zone: str
    #: What happens to a run that was due while no controller worked: "once" or "skip".
    missed: str
    #: Whether a run begins while the job of the one before has not ended.
    overlaps: bool
    paused: bool
    #: The tasks as the user sent them, sealed, since they may contain secrets.
    tasks: bytes
    #: The digests of the files that they name: as long as the schedule exists, they are kept.
    uploads: list[str] = Field(sa_column=Column(JSON, nullable=False))
    created_at: float
    #: When it is due; None if never.
    next_at: float | None = None
    last_due_at: float | None = None
    last_job_id: int | None = None
    #: What became of the run that was due last, if it launched no job.
    last_result: str = Field(default="", sa_column=Column(Text, nullable=False))
