"""The faults of the fake Azure. They may be changed at any time."""

from __future__ import annotations

from dataclasses import dataclass, field

from perdure.recovery.market.view import Market

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
    """A count of calls (`throttle`, `lost_answers`, …) decreases with each call that it affects."""

    capacity: dict[str, int] = field(default_factory=dict)  # zone → how many machines may exist there
    #: zone, or (zone, market) → the error code of every creation there
    launch_errors: dict[str | tuple[str, Market], str] = field(default_factory=dict)
    late: dict[str, str] = field(default_factory=dict)  # zone → the code with which accepted creations fail later
    deny: str | None = None  # the error code of every call
    forbid: set[str] = field(default_factory=set)  # the calls that the role does not allow: "Microsoft.…/write"
    granted: list[str] = field(default_factory=lambda: ["*"])  # what the caller's role allows
    taken_away: list[str] = field(default_factory=list)  # the role's notActions
    granted_data: list[str] = field(default_factory=lambda: ["*"])  # and its dataActions
    quotas: dict[tuple[str, str], int] = field(default_factory=dict)  # (region, family) → limit, if not as usual
    prices_away: bool = False  # the retail price list does not respond
    closed: set[tuple[str, str]] = field(default_factory=set)  # (region or zone, size) that is restricted
    registrations: dict[str, str] = field(default_factory=dict)  # resource provider → its state, if not registered
    missing_images: set[tuple[str, str]] = field(default_factory=set)  # (region, publisher:type:offer:sku)
    throttle: int = 0  # how many of the next calls are throttled
    identities_listed_slowly: int = 0  # how many of the next role assignments do not find the identity yet
    #: action (as in a role) → how many of its next calls take effect without a response
    lost_answers: dict[str, int] = field(default_factory=dict)
    lost_requests: dict[str, int] = field(default_factory=dict)  # the same, but they take no effect
    delay_s: float = 0.0  # how long creations and deletions take
    listing_delay_s: float = 0.0  # how long a new machine is neither described nor listed
    evicted_after_s: float = 30.0  # simulateEviction: seconds from the notice to the end

    def refusal(self, zone: str, market: Market) -> str | None:
        return self.launch_errors.get((zone, market)) or self.launch_errors.get(zone)
