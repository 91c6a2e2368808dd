"""What the controller's API answers with, as typed mappings. The words are those of `docs/api.md`.

Times are ISO 8601 strings in UTC, durations seconds, prices USD per hour.
"""

from __future__ import annotations

from typing import Any, TypedDict


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
    """A mean, and what one case of ten is below and another above."""

    mean: float
    low: float
    high: float


class Forecast(TypedDict):
    """What a task will cost (USD) and how long it will take from its launch, over `runs` drawn markets.

    `why_not`: why nothing is foreseen; the rest is None then. `seconds` None: too many runs took too long to tell.
    `late`: the share that missed the deadline; None without one. `assumed`: what it rests on, for people.
    """

    why_not: str | None
    assumed: str | None
    runs: int
    cost: Spread | None
    seconds: Spread | None
    late: float | None


class TaskPlan(TypedDict):
    """`offers` in the order in which they would be tried; `saving` is a share of the on-demand price, 0…1.

    `strategy`: the policy that will decide, and why it is that one. `forecast`: None unless it was asked for.
    """

    name: str
    num_nodes: int
    offers: list[Offer]
    total_offers: int
    saving: float | None
    refused: list[str]
    strategy: str
    why_strategy: str
    forecast: Forecast | None


class Plan(TypedDict):
    tasks: list[TaskPlan]
    warnings: list[str]


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
    """`now`: by the controller's clock, ISO 8601."""

    now: str
    tasks: list[Job]
    attempts: list[Attempt]
    timeline: list[TimelineEntry]


class JobPage(TypedDict):
    """`jobs` newest first, with all their tasks. `counts` and `total` are of every task that the controller knows.

    `now`: by the controller's clock, ISO 8601.
    """

    now: str
    jobs: list[Job]
    counts: dict[str, int]
    total: int


class Gpu(TypedDict):
    """A type of machine in a region. Prices in USD an hour for the whole machine; `zones`: that sell it as spot.

    `priced_at`: when the cloud told this (ISO, UTC). Where it did not, `table_of` is the month (`2025-12`) of the
    built-in table that stands in. Both None: it is what config.yaml says.
    """

    accelerator: str
    count: float
    cloud: str
    region: str
    instance_type: str
    vcpus: float
    memory_gib: float
    zones: int
    spot_per_hour: float | None
    on_demand_per_hour: float | None
    priced_at: str | None
    table_of: str | None


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
    """Of a cloud's set-up. `about`: credentials, permissions, regions or quotas. `outcome`: ok, limits (some launches
    can not succeed), fails (none can) or unknown. `fix`: what to do."""

    about: str
    outcome: str
    text: str
    fix: str | None


class Probes(TypedDict):
    """Of the last day: how many, and USD, of the USD that they may cost."""

    count: int
    cost_usd: float
    budget_usd: float


class ControllerInfo(TypedDict):
    """`probes`: None where none are made."""

    version: str
    id: str
    pid: int
    started_at: str
    home: str
    endpoint: str
    jobs: dict[str, int]
    probes: Probes | None


class Installed(TypedDict):
    """`is_new`: the controller starts again with it; else it ran it already."""

    version: str
    is_new: bool
