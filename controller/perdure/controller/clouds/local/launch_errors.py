"""The errors of the local cloud and what each code means. The codes are EC2's, so that tests resemble a real cloud."""

from __future__ import annotations

from dataclasses import dataclass

from perdure.controller.clouds.base.protocol import Fault
from perdure.recovery.market.unavailable import FaultKind
from perdure.recovery.market.view import Market
from perdure.recovery.reasons import Reason


@dataclass(frozen=True)
class ErrorCode:
    """A row of the table."""

    kind: FaultKind
    reason: Reason
    text: str  # the message, unless the settings give another
    retry_after_s: float | None = None


CODES = {
    "InsufficientInstanceCapacity": ErrorCode(FaultKind.AVOID_ZONE, Reason.NO_CAPACITY, "the zone is full", 10.0),
    "UnfulfillableCapacity": ErrorCode(FaultKind.AVOID_ZONE, Reason.NO_CAPACITY, "there is no capacity"),
    "Unsupported": ErrorCode(FaultKind.AVOID_ZONE, Reason.NO_CAPACITY, "the zone does not sell this", 3600.0),
    "SpotMaxPriceTooLow": ErrorCode(FaultKind.AVOID_ZONE, Reason.PRICE, "the price has risen", 60.0),
    "MaxSpotInstanceCountExceeded": ErrorCode(
        FaultKind.AVOID_REGION, Reason.QUOTA, "the region's spot quota is used up", 60.0
    ),
    "VcpuLimitExceeded": ErrorCode(FaultKind.AVOID_REGION, Reason.QUOTA, "the region's quota is used up", 60.0),
    "RequestLimitExceeded": ErrorCode(FaultKind.RETRY_LATER, Reason.THROTTLED, "too many calls", 2.0),
    "InternalError": ErrorCode(FaultKind.RETRY_LATER, Reason.NO_CAPACITY, "the machine could not be started", 10.0),
    "UnauthorizedOperation": ErrorCode(
        FaultKind.AVOID_CLOUD, Reason.BAD_CREDENTIALS, "the credentials do not allow this", 300.0
    ),
    "InvalidParameterValue": ErrorCode(FaultKind.GIVE_UP, Reason.BAD_REQUEST, "the request is wrong"),
    "InvalidInstanceID.NotFound": ErrorCode(FaultKind.GIVE_UP, Reason.BAD_REQUEST, "no such instance"),
}


class LocalCloudError(Exception):
    """The local cloud rejected the call, and nothing was launched. `market` None: both markets."""

    def __init__(self, code: str, message: str = "", *, zone: str | None = None, market: Market | None = None) -> None:
        self.code = code
        self.message = message or CODES[code].text
        self.zone = zone
        self.market = market
        super().__init__(f"{code}: {f'{zone}: ' if zone else ''}{self.message}")


def classify(error: Exception) -> Fault:
    """Any other exception is ambiguous: the launch may have succeeded."""
    if not isinstance(error, LocalCloudError):
        return Fault(FaultKind.AMBIGUOUS, Reason.NO_CAPACITY, type(error).__name__, str(error))
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
