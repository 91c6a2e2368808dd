"""The faults of the fake Compute Engine. They may be changed at any time."""

from __future__ import annotations

from dataclasses import dataclass, field

from perdure.recovery.market.view import Market

EXHAUSTED = "ZONE_RESOURCE_POOL_EXHAUSTED"
# code → (HTTP status, reason or None for one of an operation, text)
TEXTS = {
    EXHAUSTED: "The zone 'projects/perdure-test/zones/{zone}' does not have enough resources available to fulfill the "
    "request.  Try a different zone, or try again later.",
    "QUOTA_EXCEEDED": "Quota 'PREEMPTIBLE_CPUS' exceeded.  Limit: 0.0 in region {region}.",
    "VM_MIN_COUNT_NOT_REACHED": "Requested minimum count of {count} VMs could not be created.",
}
# Reason of a denied call → (HTTP status, text).
DENIALS = {
    "authError": (401, "Request had invalid authentication credentials."),
    "forbidden": (403, "Required 'compute.instances.create' permission for 'projects/perdure-test'"),
    "accessNotConfigured": (403, "Compute Engine API has not been used in project perdure-test before."),
    "rateLimitExceeded": (403, "Rate Limit Exceeded"),
}


@dataclass
class Faults:
    """A count of calls (`throttle`, `lost_answers`, …) decreases with each call that it affects."""

    capacity: dict[str, int] = field(default_factory=dict)  # zone → how many instances may exist there
    #: zone, or (zone, market) → the error code of every launch there
    launch_errors: dict[str | tuple[str, Market], str] = field(default_factory=dict)
    deny: str | None = None  # the reason with which every call is denied
    forbid: set[str] = field(default_factory=set)  # permissions that the caller lacks
    quotas: dict[tuple[str, str], float] = field(default_factory=dict)  # (region, metric) → limit
    throttle: int = 0  # how many of the next calls are throttled
    accounts_listed_slowly: int = 0  # how many of the next calls do not find a service account yet
    lost_answers: dict[str, int] = field(default_factory=dict)  # method → how many calls take effect unanswered
    lost_requests: dict[str, int] = field(default_factory=dict)  # the same, but they take no effect
    listing_delay_s: float = 0.0  # how long a new instance is not listed
    operation_s: float = 0.0  # how long a launch takes
    wait_s: float = 120.0  # the maximum time for which a call waits for an operation
    soft_off_s: float = 30.0  # seconds from the preemption notice to the end
    hides_cause: bool = False  # a failed bulk insert names no cause, but its parts do
    leaves_some: bool = False  # a failed bulk insert leaves the instances that it created
    unreachable: frozenset[str] = frozenset()  # zones missing from aggregated lists
    page_size: int = 500
    prices_away: bool = False  # the Cloud Billing API is not enabled

    def refusal(self, zone: str, market: Market) -> str | None:
        return self.launch_errors.get((zone, market)) or self.launch_errors.get(zone)
