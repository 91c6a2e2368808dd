"""The responses of the calls that only the dashboard needs, as typed mappings; the others are in `sdk.connection`."""

from __future__ import annotations

from typing import Any, TypedDict

from perdure.sdk.connection import api_types


class BrowserSignIn(TypedDict):
    """A browser's session; both are None for a caller without one."""

    signed_in_at: str | None
    valid_until: str | None


class SignedIn(BrowserSignIn):
    """`csrf`: the value of the header `Perdure-CSRF`, with which alone the cookie is valid."""

    csrf: str


class CodeOwner(TypedDict):
    """Whom a code signs in. `is_certain`: whether there is no doubt that this is who the browser's user is."""

    user: str
    is_certain: bool


class CommandLineToken(TypedDict):
    """A token for a command line that was signed in by a browser. It is shown this once."""

    token: str
    user: str
    expires_at: str | None


class TaskSpec(TypedDict):
    """A task as it was submitted, without the values of secrets."""

    task_index: int
    name: str
    yaml: str
    config: dict[str, Any]
    secrets: list[str]  # names; empty once the job has ended


class JobSpec(TypedDict):
    tasks: list[TaskSpec]


class ParsedTasks(TypedDict):
    """The tasks of a YAML text, as a submission takes them."""

    name: str | None
    tasks: list[dict[str, Any]]
    warnings: list[str]


class MarketOffer(TypedDict):
    """A machine that can be bought in a zone. Prices are None in a market that does not offer it.

    `avoided_until` and the fields below are those of the spot offer, if there is one.
    """

    cloud: str
    region: str
    zone: str
    instance_type: str
    accelerators: str | None
    vcpus: float
    memory_gib: float
    spot_per_hour: float | None
    on_demand_per_hour: float | None
    avoided_until: str | None
    avoided_why: str | None
    last_tried: str | None
    was_available: bool | None  # when it was last tried
    lost_in_a_day: int  # machines


class AvoidedOffers(TypedDict):
    """Offers that are avoided after a failed launch or a preemption. A field of the scope that is None means any."""

    cloud: str
    region: str | None
    zone: str | None
    instance_type: str | None
    market: str | None
    kind: str
    code: str
    since: str
    until: str
    why: str
    from_preemption: bool


class MarketTable(TypedDict):
    now: str
    offers: list[MarketOffer]
    total: int  # of all that match
    avoided: list[AvoidedOffers]
    disabled: dict[str, str]  # cloud → why it cannot be used


class SpentAmounts(TypedDict):
    """`lost_s`: work of one machine that had to be done again, of tasks that report checkpoints."""

    cost_usd: float
    on_demand_usd: float
    lost_s: float
    lost_usd: float


class NamedAmounts(SpentAmounts):
    name: str


class JobAmounts(NamedAmounts):
    job_id: int


class DayAmounts(SpentAmounts):
    day: str  # in UTC


class Savings(TypedDict):
    """What jobs have cost that ended since some time, and those that have not ended."""

    now: str
    since: str
    is_complete: bool  # False: it does not yet reach as far back as requested
    is_current: bool  # False: jobs have changed since the unfinished ones were added up
    total: SpentAmounts
    unfinished: SpentAmounts  # part of `total`
    by_user: list[NamedAmounts]
    by_cloud: list[NamedAmounts]
    by_job: list[JobAmounts]  # the most expensive ones
    by_day: list[DayAmounts]  # of tasks that ended


class ControllerLease(TypedDict):
    """A controller of the database."""

    id: str
    endpoint: str
    started_at: str
    lease_until: str
    is_alive: bool
    schema_revision: str


class FleetNode(TypedDict):
    """A machine of an attempt that is not over."""

    job_id: int
    task_index: int
    generation: int
    rank: int
    name: str  # of the job
    user: str
    phase: str
    attempt_state: str
    instance_id: str | None
    ip: str | None
    connected: bool
    cloud: str
    region: str
    zone: str
    instance_type: str
    market: str
    price_per_hour: float
    launched_at: str | None
    notice_deadline: str | None


class NodePage(TypedDict):
    now: str
    nodes: list[FleetNode]
    next: int | None  # `before` of the next page


class NodeMetrics(TypedDict):
    """What one node used and reported over time: a value for each point of `at` (epoch seconds), or null.

    `values`: `cpu`, `memory`, `disk`, `gpu` and `gpu_memory` as shares of what the machine has, `received_per_s` and
    `sent_per_s` in bytes, `gpu_power_w` of all GPUs together, `gpu_temperature_c` of the hottest one, and `step`.
    `reported`: the numbers that the program reported, by its names.
    """

    task_index: int
    generation: int
    rank: int
    resolution_s: float  # points stand for so many seconds; longer for nodes that have run longer
    at: list[float]
    values: dict[str, list[float | None]]
    reported: dict[str, list[float | None]]


class MetricsOverTime(TypedDict):
    """The metrics of a job's nodes, of all attempts."""

    now: str
    series: list[NodeMetrics]
    omitted: int  # nodes of older attempts that are left out


class SignInProvider(TypedDict):
    """The provider that signs users in, as the sign-in page calls it; null if there is none."""

    name: str | None


class LogSummary(TypedDict):
    """How long a transcript is, and where its attempts begin. Lines are counted from 0."""

    lines: int
    bytes: int
    is_final: bool
    attempts: list[list[int]]  # of each: the index of the task, the number of the attempt, the line of its headline


class LogMatches(TypedDict):
    """The lines that have a text, in the direction of the search. `continue_at`: from which line on, or before which,
    to search next; None if all lines in that direction were searched."""

    lines: list[int]
    continue_at: int | None


class RecentJob(api_types.JobDetail):
    """A job with its newest attempts and entries of its timeline, and totals of all of them."""

    num_attempts: int
    num_events: int
    preemptions: int
    lost_s: float | None  # work that had to be done again; None if a task that has recovered reports no checkpoints
    lost_usd: float | None


class NumberedEntry(api_types.TimelineEntry):
    """An entry of a timeline with its number, by which pages continue."""

    id: int


class TimelinePage(TypedDict):
    """Entries of a timeline, the newest first. `num_matching` counts all that match the filter."""

    entries: list[NumberedEntry]
    num_matching: int
    num_checkpoints: int  # entries about checkpoints, in the whole timeline
