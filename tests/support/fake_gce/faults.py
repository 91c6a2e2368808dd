"""What goes wrong in the fake Compute Engine. Change it at any time."""

from __future__ import annotations

from dataclasses import dataclass, field

from perdure.recovery.market import Market

EXHAUSTED = "ZONE_RESOURCE_POOL_EXHAUSTED"
# code → (HTTP status, reason or None for one of an operation, text)
TEXTS = {
    EXHAUSTED: "The zone 'projects/perdure-test/zones/{zone}' does not have enough resources available to fulfill the "
    "request.  Try a different zone, or try again later.",
    "QUOTA_EXCEEDED": "Quota 'PREEMPTIBLE_CPUS' exceeded.  Limit: 0.0 in region {region}.",
    "VM_MIN_COUNT_NOT_REACHED": "Requested minimum count of {count} VMs could not be created.",
}
# What a call is denied with: reason → (HTTP status, text).
DENIALS = {
    "authError": (401, "Request had invalid authentication credentials."),
    "forbidden": (403, "Required 'compute.instances.create' permission for 'projects/perdure-test'"),
    "accessNotConfigured": (403, "Compute Engine API has not been used in project perdure-test before."),
    "rateLimitExceeded": (403, "Rate Limit Exceeded"),
}


@dataclass
class Faults:
    """`capacity`: zone → how many instances may live there. `refuse`: zone, or (zone, market) → the code that every
    launch there comes to. `deny`: the reason that every call is denied with.

    Used up by the calls that meet them: `throttle`, how many calls are throttled; `lost_answers`: method → how many of
    its next calls take effect and are never answered; `lost_requests`: the same, but they take none.
    """

    capacity: dict[str, int] = field(default_factory=dict)
    refuse: dict[str | tuple[str, Market], str] = field(default_factory=dict)
    deny: str | None = None
    forbid: set[str] = field(default_factory=set)  # permissions that the caller is said not to have
    quotas: dict[tuple[str, str], float] = field(default_factory=dict)  # (region, metric) → limit, if not as usual
    throttle: int = 0
    accounts_told_slowly: int = 0  # how many of the next calls have not heard of a service account
    lost_answers: dict[str, int] = field(default_factory=dict)
    lost_requests: dict[str, int] = field(default_factory=dict)
    listing_delay_s: float = 0.0  # a new instance is not listed for so long
    operation_s: float = 0.0  # how long a launch takes to be done
    wait_s: float = 120.0  # how long a call that waits for an operation is held at most
    soft_off_s: float = 30.0  # from the word of a preemption to its end
    hides_cause: bool = False  # a bulk insert that fails names no cause: its parts do
    leaves_some: bool = False  # a bulk insert that fails leaves what it has made
    unreachable: frozenset[str] = frozenset()  # zones that an aggregated list tells nothing of
    page_size: int = 500
    prices_away: bool = False  # the Cloud Billing API is not enabled

    def refusal(self, zone: str, market: Market) -> str | None:
        return self.refuse.get((zone, market)) or self.refuse.get(zone)
