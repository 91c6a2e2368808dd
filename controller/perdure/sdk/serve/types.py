"""The JSON objects of the API for services. Times are ISO 8601 UTC."""

from __future__ import annotations

from typing import TypedDict

MAX_PROXY_LINES = 100_000
"""So many lines of the log of a proxy can be read."""
MAX_TIMELINE_ENTRIES = 500
"""So many entries of the timeline of a service are kept."""


class ServiceReplica(TypedDict):
    """A replica of a service."""

    service_name: str
    number: int
    version: int
    status: str  # PENDING, PROVISIONING, STARTING, READY, NOT_READY, SHUTTING_DOWN, FAILED…, PREEMPTED, TERMINATED
    message: str  # why it is not ready, or why it has ended
    is_spot: bool
    job_id: int | None  # the job that it is; None before that is submitted
    infra: str
    resources: str
    requests: int  # that it answers now
    launched_at: str
    ready_at: str | None  # when it was first ready
    ended_at: str | None


class Service(TypedDict):
    """A service, with its replicas that are not over and the last ones that are."""

    name: str
    service_id: int
    user: str
    version: int
    status: str  # REPLICA_INIT, READY, NO_REPLICA, FAILED, SHUTTING_DOWN or DOWN
    message: str  # the cause of a status that is not READY, or what is wrong
    uptime_s: float | None  # since it has answered; None while it does not
    created_at: str
    endpoint: str | None  # None once it is down
    has_token: bool
    ready_replicas: int
    target_replicas: int
    requests: int  # that are answered or held now
    recent_requests: int  # that arrived in the last minute
    waiting_requests: int  # of `requests`: that wait for a replica
    waiting_since: str | None  # when the oldest of those that are held until a replica is ready arrived
    autoscaling_policy: str
    load_balancing_policy: str
    requested_resources: str
    price_per_hour: float  # of its machines now, in USD
    replicas: list[ServiceReplica]


class ServiceList(TypedDict):
    now: str
    services: list[Service]


class ServiceToken(TypedDict):
    """What callers of a service send. `token` is empty if everybody may call."""

    endpoint: str
    token: str


class ServiceSpec(TypedDict):
    """The task of the newest version of a service. `secrets`: the names of those whose values are left out."""

    version: int
    yaml: str
    secrets: list[str]


class ProxyLog(TypedDict):
    """The last lines of the log of a service's proxy."""

    text: str


class StartedService(TypedDict):
    """The service that a request has started or updated. `token`: empty if everybody may call."""

    service_id: int
    name: str
    version: int
    endpoint: str
    token: str
    warnings: list[str]


class ServiceTimelineEntry(TypedDict):
    """What has happened to a service."""

    at: str
    kind: str
    version: int | None
    replica: int | None
    message: str


class ServiceTimeline(TypedDict):
    entries: list[ServiceTimelineEntry]
