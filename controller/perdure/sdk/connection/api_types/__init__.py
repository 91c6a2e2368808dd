"""The responses of the controller's API as typed mappings. `docs/reference/api.md` describes them.

Times are ISO 8601 strings in UTC, durations seconds, prices USD per hour.
"""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict

from perdure.sdk.connection.api_types.clusters import CancelledJobs as CancelledJobs
from perdure.sdk.connection.api_types.clusters import Cluster as Cluster
from perdure.sdk.connection.api_types.clusters import ClusterEndpoints as ClusterEndpoints
from perdure.sdk.connection.api_types.clusters import ClusterJob as ClusterJob
from perdure.sdk.connection.api_types.clusters import ClusterList as ClusterList
from perdure.sdk.connection.api_types.clusters import ClusterQueue as ClusterQueue
from perdure.sdk.connection.api_types.clusters import OnCluster as OnCluster


class Offer(TypedDict):
    cloud: str
    region: str
    zone: str
    instance_type: str
    market: str
    price_per_hour: float
    on_demand_price_per_hour: float
    vcpus: float
    memory_gib: float
    accelerators: str | None


class Spread(TypedDict):
    """The mean, and the 10th and 90th percentiles."""

    mean: float
    low: float
    high: float


class Forecast(TypedDict):
    """The expected cost of a task and its time from the launch, over simulated markets."""

    unavailable_reason: str | None  # why there is no forecast; the other fields are None then
    assumed: str | None  # what the forecast is based on, for people
    runs: int  # simulated markets
    cost: Spread | None  # USD
    seconds: Spread | None  # None: too many runs did not end
    late: float | None  # the share of runs that missed the deadline; None without a deadline


class TaskPlan(TypedDict):
    """What a launch of one task would do."""

    name: str
    num_nodes: int
    offers: list[Offer]  # in the order in which they would be tried
    total_offers: int
    saving: float | None  # share of the on-demand price, 0…1
    unavailable: list[str]
    strategy: str  # the policy that will decide
    strategy_reason: str
    forecast: Forecast | None  # None unless it was requested


class Plan(TypedDict):
    """The offers of one job. `num_jobs`: how many jobs a launch makes; controllers before 0.2 do not say."""

    tasks: list[TaskPlan]
    warnings: list[str]
    num_jobs: NotRequired[int]


class Job(TypedDict):
    """One task of a job: a pipeline has several with one `job_id`."""

    job_id: int
    task_index: int
    num_tasks: int
    name: str
    task_name: str | None
    status: str
    reason: str | None
    message: str | None
    task_id: str
    sweep_id: int | None  # the first of the jobs that were launched together; None: it was launched alone
    sweep_rank: int | None  # SKYPILOT_JOB_RANK
    user: str
    priority: int
    submitted_at: str
    started_at: str | None
    ended_at: str | None
    job_duration_s: float
    total_duration_s: float
    recovery_count: int
    restarts_on_errors: int
    resources: str
    cluster_resources: str | None
    num_nodes: int
    cloud: str | None
    region: str | None
    zone: str | None
    market: str | None
    generation: int
    cost_usd: float
    on_demand_cost_usd: float
    exit_code: int | None
    cleanup: str | None


class Node(TypedDict):
    rank: int
    instance_id: str | None
    ip: str | None
    phase: str
    connected: bool
    exit_code: int | None


class Attempt(TypedDict):
    task_index: int
    generation: int
    state: str
    reason: str | None
    cloud: str
    region: str
    zone: str
    instance_type: str
    market: str
    price_per_hour: float
    requested_at: str
    running_at: str | None
    stopped_at: str | None
    gone_at: str | None
    cost_usd: float
    nodes: list[Node]


class TimelineEntry(TypedDict):
    at: str
    kind: str
    task_index: int | None
    generation: int | None
    rank: int | None
    reason: str | None
    message: str
    data: dict[str, Any]


class JobDetail(Job):
    """A job with its tasks, attempts and timeline."""

    now: str  # by the controller's clock
    tasks: list[Job]
    attempts: list[Attempt]
    timeline: list[TimelineEntry]
    waits_for: str  # why it waits, in one sentence; "" if it runs or has ended
    waits_since: str | None
    cluster: str | None  # the name of the cluster that the job belongs to
    cluster_job: int | None  # its number there; None for the job that holds the machines of the cluster


class NodeAddress(TypedDict):
    """The node that a name stands for now, and how ssh reaches it."""

    name: str
    job_id: int
    task_index: int
    generation: int
    rank: int
    num_nodes: int
    user: str  # who logs in by ssh
    host_key: str  # of its ssh server, as in a line of known_hosts


class JobPage(TypedDict):
    """A page of jobs."""

    now: str  # by the controller's clock
    jobs: list[Job]  # newest first, with all their tasks
    counts: dict[str, int]  # status → number, of all tasks in the database
    total: int  # of all tasks in the database


class Gpu(TypedDict):
    """A type of machine in a region. Prices are for the whole machine.

    `priced_at` is None if the price is not from the cloud: `catalog_month` is then the month of the built-in table, or
    also None for prices from config.yaml.
    """

    accelerator: str
    count: float
    cloud: str
    region: str
    instance_type: str
    vcpus: float
    memory_gib: float
    zones: int  # with spot offers
    spot_per_hour: float | None
    on_demand_per_hour: float | None
    priced_at: str | None  # when the cloud returned the price
    catalog_month: str | None  # such as 2025-12


class Submitted(TypedDict):
    job_id: int
    job_ids: list[int]
    name: str
    task_ids: list[str]
    warnings: list[str]


class Cancelled(TypedDict):
    cancelled: list[int]
    finished: list[int]
    unknown: list[int]


class Preempted(TypedDict):
    instance_id: str
    zone: str


class Cloud(TypedDict):
    name: str
    usable: bool
    why: str | None
    regions: list[str]
    notes: list[str]


class Finding(TypedDict):
    """One result of checking a cloud account."""

    subject: str  # credentials, permissions, regions, quotas or prices
    severity: str  # "ok", "warning" (some launches cannot succeed), "error" (none can) or "unknown"
    text: str
    fix: str | None  # what to do; None where nothing is wrong


class Probes(TypedDict):
    """The probes of the last day: their number, cost and budget in USD."""

    count: int
    cost_usd: float
    budget_usd: float


class Backups(TypedDict):
    """The backups that config.yaml schedules."""

    to: str
    last: str | None  # None before the first one
    error: str | None  # why the newest attempt failed; None if it did not


class ControllerInfo(TypedDict):
    """A controller and its state."""

    version: str
    id: str
    pid: int
    started_at: str
    home: str
    endpoint: str
    jobs: dict[str, int]
    probes: Probes | None  # None if probes are off
    overdue: str | None  # what it is more than a minute behind with; None if it keeps up
    rejected_frames: int  # invalid frames of nodes, since it started
    backup: Backups | None  # None unless config.yaml schedules backups
    unknown_machines: list[dict[str, Any]]  # machines of jobs that its database does not know, since it started
    set_aside: int  # events and messages that could not be recorded, since it started
    config_changed: NotRequired[bool]  # config.yaml was changed after this controller had read it


class Installed(TypedDict):
    """The result of an installation."""

    version: str
    is_new: bool  # False: the controller already ran this version, and does not restart


class Notification(TypedDict):
    """An event on its way to a channel, or one that has arrived."""

    event_id: str
    event: str  # such as job.failed
    channel: str
    job_id: int | None
    at: str
    tries: int
    next_try_at: str | None  # None once it is done
    outcome: str | None  # "sent", "dead" (given up), or None while it waits
    detail: str | None  # the receiver's answer, or the last error


class NotificationTest(TypedDict):
    """The result of sending a test message."""

    channel: str
    delivered: bool
    detail: str


class SignInCode(TypedDict):
    """A code that signs one browser in. `perdure dashboard` opens `/#login=CODE`."""

    code: str
    valid_s: float


class GpuUse(TypedDict):
    """The mean use of one GPU in the last minute. `utilization`: the share of the time in which a kernel ran."""

    utilization: float
    memory_used: float
    memory_total: float
    power_w: float
    temperature_c: float


class NodeUse(TypedDict):
    """What a node's machine used in the last minute, in processors, bytes, and bytes per second."""

    task_index: int
    generation: int
    rank: int
    at: str
    cpus: float
    cpu_used: float
    memory_used: float
    memory_total: float
    disk_used: float
    disk_total: float
    received_per_s: float
    sent_per_s: float
    gpus: list[GpuUse]
    step: int | None  # the program's report, if it is a new one
    values: dict[str, float]
