"""The responses of the API about clusters and their queues."""

from __future__ import annotations

from typing import TypedDict


class Cluster(TypedDict):
    """A cluster. A time is ISO 8601 in UTC."""

    name: str
    cluster_id: int
    user: str
    status: str  # INIT, UP, STOPPED, AUTOSTOPPING, PREEMPTED; DOWN once it no longer exists
    message: str  # why it lost its machines, or never had any
    infra: str  # cloud and zone, "-" while it has no machines
    resources: str
    num_nodes: int
    autostop_s: float | None  # None: it is never stopped by itself
    autostop_down: bool
    autostop_wait_for: str  # jobs_and_ssh, jobs or none
    autostop_idle_below: float | None  # jobs count only while a machine uses this share of its CPUs or of a GPU
    recover: bool
    launched_at: str
    head_ip: str | None
    command: str
    host_job_id: int | None  # of the job that holds its machines
    is_settled: bool  # False while machines that are no longer wanted still end
    kept_disks: int  # of machines that are stopped: only these cost money now
    disk_price_per_hour: float  # of these, in USD
    disk_cost: float  # USD that its disks have cost so far while its machines were stopped
    home: str | None  # `store:bucket` that keeps what was changed in the home of its machines while it is stopped
    home_problem: str  # why there is no such bucket, if creating one failed


class ClusterList(TypedDict):
    now: str
    clusters: list[Cluster]


class ClusterEndpoints(TypedDict):
    endpoints: dict[str, str]  # a port or range that is open to the internet → address:port of the first node


class ClusterJob(TypedDict):
    """A job of a cluster."""

    number: int  # on its cluster, from 1
    job_id: int  # in the installation
    name: str
    user: str
    submitted_at: str
    started_at: str | None
    ended_at: str | None
    duration_s: float
    resources: str
    status: str  # PENDING, INIT, SETTING_UP, RUNNING, SUCCEEDED, FAILED, FAILED_SETUP, FAILED_DRIVER or CANCELLED
    has_ended: bool
    message: str
    exit_code: int | None
    recovery_count: int
    task_id: str  # SKYPILOT_TASK_ID


class ClusterQueue(TypedDict):
    now: str
    cluster: Cluster
    jobs: list[ClusterJob]  # newest first


class OnCluster(TypedDict):
    """The cluster that a launch or an exec was about, and its new job, if any."""

    cluster_id: int
    name: str
    number: int | None
    job_id: int | None
    warnings: list[str]


class CancelledJobs(TypedDict):
    """Numbers of jobs."""

    cancelled: list[int]
    finished: list[int]
    unknown: list[int]
