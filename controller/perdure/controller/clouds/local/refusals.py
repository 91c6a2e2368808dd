"""What the local cloud refuses with, and what each code means. The codes are EC2's, as a rehearsal should be."""

from __future__ import annotations

from dataclasses import dataclass

from perdure.controller.clouds.base import Fault
from perdure.recovery.market import FaultKind, Market
from perdure.recovery.reasons import Reason


@dataclass(frozen=True)
class Code:
    """One row of the table. `text`: what is said when the settings give no message."""

    kind: FaultKind
    reason: Reason
    text: str
    retry_after_s: float | None = None


CODES = {
    "InsufficientInstanceCapacity": Code(FaultKind.AVOID_ZONE, Reason.NO_CAPACITY, "the zone is full", 10.0),
    "UnfulfillableCapacity": Code(FaultKind.AVOID_ZONE, Reason.NO_CAPACITY, "there is no capacity"),
    "Unsupported": Code(FaultKind.AVOID_ZONE, Reason.NO_CAPACITY, "the zone does not sell this", 3600.0),
    "SpotMaxPriceTooLow": Code(FaultKind.AVOID_ZONE, Reason.PRICE, "the price has risen", 60.0),
    "MaxSpotInstanceCountExceeded": Code(
        FaultKind.AVOID_REGION, Reason.QUOTA, "the region's spot quota is used up", 60.0
    ),
    "VcpuLimitExceeded": Code(FaultKind.AVOID_REGION, Reason.QUOTA, "the region's quota is used up", 60.0),
    "RequestLimitExceeded": Code(FaultKind.RETRY_LATER, Reason.THROTTLED, "too many calls", 2.0),
    "InternalError": Code(FaultKind.RETRY_LATER, Reason.NO_CAPACITY, "the machine could not be started", 10.0),
    "UnauthorizedOperation": Code(
        FaultKind.AVOID_CLOUD, Reason.BAD_CREDENTIALS, "the credentials do not allow this", 300.0
    ),
    "InvalidParameterValue": Code(FaultKind.GIVE_UP, Reason.BAD_REQUEST, "the request is wrong"),
    "InvalidInstanceID.NotFound": Code(FaultKind.GIVE_UP, Reason.BAD_REQUEST, "no such instance"),
}


class LocalRefusal(Exception):
    """The local cloud said no, and nothing was bought. `market` None: to both markets."""

    def __init__(self, code: str, message: str = "", *, zone: str | None = None, market: Market | None = None) -> None:
        self.code = code
        self.message = message or CODES[code].text
        self.zone = zone
        self.market = market
        super().__init__(f"{code}: {f'{zone}: ' if zone else ''}{self.message}")


def classify(error: Exception) -> Fault:
    """Anything that is no refusal of ours is an accident, after which the launch may have happened."""
    if not isinstance(error, LocalRefusal):
        return Fault(FaultKind.FIND_OUT, Reason.NO_CAPACITY, type(error).__name__, str(error))
    row = CODES[error.code]
    return Fault(
        row.kind,
        row.reason,
        error.code,
        str(error),
        row.retry_after_s,
        whole_region=row.kind is FaultKind.AVOID_REGION,
        whole_cloud=row.kind is FaultKind.AVOID_CLOUD,
        any_market=error.market is None,
        any_instance_type=True,
    )
