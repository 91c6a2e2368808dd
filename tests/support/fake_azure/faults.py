"""What goes wrong in the fake Azure. Change it at any time."""

from __future__ import annotations

from dataclasses import dataclass, field

from perdure.recovery.market import Market

QUOTA = (
    "Operation could not be completed as it results in exceeding approved {what} quota. Additional details - "
    "Deployment Model: Resource Manager, Location: {region}, Current Limit: {limit}, Current Usage: 0, Additional "
    "Required: 4, (Minimum) New Limit Required: 4. Submit a request for Quota increase."
)

# learn.microsoft.com/azure/virtual-machines/error-codes-spot, and …/allocation-failure
TEXTS = {
    "SkuNotAvailable": "The requested VM size for resource 'Following SKUs have failed for Capacity Restrictions: "
    "{size}' is currently not available in location '{region}' zone '{zone}'. Please try another size or deploy to a "
    "different location or different zone.",
    "AllocationFailed": "Allocation failed. We do not have sufficient capacity for the requested VM size in this "
    "region.",
    "ZonalAllocationFailed": "Allocation failed. We do not have sufficient capacity for the requested VM size in this "
    "zone ({zone}).",
    "OverconstrainedAllocationRequest": "Allocation failed. VM(s) with the following constraints cannot be allocated, "
    "because the condition is too restrictive: VM size, priority Spot.",
    "OverconstrainedZonalAllocationRequest": "Allocation failed. VM(s) with the following constraints cannot be "
    "allocated, because the condition is too restrictive: zone {zone}, VM size, priority Spot.",
    "OperationNotAllowed": QUOTA.replace("{what}", "LowPriorityCores").replace("{limit}", "3"),
    "QuotaExceeded": QUOTA.replace("{what}", "Total Regional Cores").replace("{limit}", "10"),
    "AuthorizationFailed": "The client '11111111' with object id '11111111' does not have authorization to perform "
    "action over scope '/subscriptions/…' or the scope is invalid.",
    "InvalidAuthenticationToken": "The access token is invalid.",
    "TooManyRequests": "The request is being throttled as the limit has been reached for operation type.",
    "InternalServerError": "Encountered internal server error.",
}

STATUSES = {
    "TooManyRequests": 429,
    "AuthorizationFailed": 403,
    "InvalidAuthenticationToken": 401,
    "InternalServerError": 500,
    "AllocationFailed": 409,
}


@dataclass
class Faults:
    """`capacity`: zone → how many machines may live there. `refuse`: zone, or (zone, market) → the code that every
    creation there is answered with. `late`: zone → the code with which creations there, accepted at first, fail.
    `deny`: the code that every call meets. `delay_s`: how long creations and deletions take.

    Used up by the calls that meet them: `throttle`, how many calls are throttled; `lost_answers`: action (as in a role)
    → how many of its next calls take effect and are never answered; `lost_requests`: the same, but they take none.
    """

    capacity: dict[str, int] = field(default_factory=dict)
    refuse: dict[str | tuple[str, Market], str] = field(default_factory=dict)
    late: dict[str, str] = field(default_factory=dict)
    deny: str | None = None
    granted: list[str] = field(default_factory=lambda: ["*"])  # what the caller's role allows
    taken_away: list[str] = field(default_factory=list)  # the role's notActions
    granted_data: list[str] = field(default_factory=lambda: ["*"])  # and its dataActions
    quotas: dict[tuple[str, str], int] = field(default_factory=dict)  # (region, family) → limit, if not as usual
    prices_away: bool = False  # the list of retail prices does not answer
    closed: set[tuple[str, str]] = field(default_factory=set)  # (region or zone, size) that may not be had
    throttle: int = 0
    identities_told_slowly: int = 0  # how many of the next role assignments have not heard of the identity
    lost_answers: dict[str, int] = field(default_factory=dict)
    lost_requests: dict[str, int] = field(default_factory=dict)
    delay_s: float = 0.0
    listing_delay_s: float = 0.0  # a new machine is neither described nor listed for so long
    evicted_after_s: float = 30.0  # simulateEviction: how long after the notice

    def refusal(self, zone: str, market: Market) -> str | None:
        return self.refuse.get((zone, market)) or self.refuse.get(zone)
