"""What EC2's errors mean, as data. Codes: docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html

A code that is not here may stand for anything: the launch may have happened, so its token is asked for again.
"""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.controller.clouds.base import Fault
from holdfast.recovery.market import FaultKind
from holdfast.recovery.reasons import Reason


@dataclass(frozen=True)
class Row:
    """What a code means. Unless it says more, it concerns one instance type in one zone (or region) and market.

    `hint`: what to do, added to EC2's own message.
    """

    kind: FaultKind
    reason: Reason
    retry_after_s: float | None = None
    any_market: bool = False
    any_type: bool = False
    whole_region: bool = False
    hint: str = ""


_FULL = Row(FaultKind.AVOID_ZONE, Reason.NO_CAPACITY)
_QUOTA = Row(FaultKind.AVOID_REGION, Reason.QUOTA, hint="ask AWS for a higher quota in this region, or allow others")
_THROTTLED = Row(FaultKind.RETRY_LATER, Reason.THROTTLED, any_market=True, any_type=True, whole_region=True)
_PASSING = Row(FaultKind.FIND_OUT, Reason.NO_CAPACITY)
_WRONG = Row(FaultKind.GIVE_UP, Reason.BAD_REQUEST, any_market=True)
_WRONG_IN_REGION = Row(FaultKind.AVOID_REGION, Reason.BAD_REQUEST, 24 * 3600.0, any_market=True, any_type=True)
_CREDENTIALS = Row(
    FaultKind.AVOID_CLOUD,
    Reason.BAD_CREDENTIALS,
    any_market=True,
    any_type=True,
    hint="give the controller working AWS credentials (`aws sts get-caller-identity` must succeed where it runs)",
)
_NOT_ALLOWED = Row(
    FaultKind.AVOID_CLOUD,
    Reason.BAD_CREDENTIALS,
    any_market=True,
    any_type=True,
    hint="allow what deploy/iam/aws-controller.json lists",
)
_NOT_YET_VISIBLE = Row(FaultKind.RETRY_LATER, Reason.NO_CAPACITY)
_NO_NETWORK = Row(
    FaultKind.AVOID_ZONE,
    Reason.BAD_REQUEST,
    24 * 3600.0,
    any_market=True,
    any_type=True,
    hint="make one (`aws ec2 create-default-vpc`, `create-default-subnet`), or name one in aws.subnets",
)

CODES: dict[str, Row] = {
    # no room
    "InsufficientInstanceCapacity": _FULL,
    "UnfulfillableCapacity": _FULL,
    "InsufficientCapacity": _FULL,
    "InsufficientHostCapacity": _FULL,
    "InsufficientReservedInstanceCapacity": _FULL,
    "ReservationCapacityExceeded": _FULL,
    "Unsupported": Row(FaultKind.AVOID_ZONE, Reason.NO_CAPACITY, 6 * 3600.0, any_market=True),
    "InsufficientFreeAddressesInSubnet": Row(
        FaultKind.AVOID_ZONE, Reason.NO_CAPACITY, 600.0, any_market=True, any_type=True
    ),
    "SpotMaxPriceTooLow": Row(FaultKind.AVOID_ZONE, Reason.PRICE, 600.0),
    # quotas: each region has its own, and spot's are apart from on-demand's
    "MaxSpotInstanceCountExceeded": _QUOTA,
    "VcpuLimitExceeded": _QUOTA,
    "InstanceLimitExceeded": _QUOTA,
    "MaxFleetCountExceeded": _QUOTA,
    "VolumeLimitExceeded": Row(FaultKind.AVOID_REGION, Reason.QUOTA, any_market=True, any_type=True, hint=_QUOTA.hint),
    # too fast: nothing happened
    "RequestLimitExceeded": _THROTTLED,
    "Throttling": _THROTTLED,
    "ThrottlingException": _THROTTLED,
    "ThrottledException": _THROTTLED,
    "RequestThrottled": _THROTTLED,
    "RequestThrottledException": _THROTTLED,
    # EC2's own trouble: it may have happened, the same token tells
    "InternalError": _PASSING,
    "InternalFailure": _PASSING,
    "ServiceUnavailable": _PASSING,
    "Unavailable": _PASSING,
    "RequestTimeout": _PASSING,
    # what was just made is not seen everywhere at once
    "InvalidInstanceID.NotFound": _NOT_YET_VISIBLE,
    "InvalidSubnetID.NotFound": _NOT_YET_VISIBLE,
    # who we are, and what we may do
    "AuthFailure": _CREDENTIALS,
    "ExpiredToken": _CREDENTIALS,
    "ExpiredTokenException": _CREDENTIALS,
    "RequestExpired": _CREDENTIALS,
    "InvalidClientTokenId": _CREDENTIALS,
    "UnrecognizedClientException": _CREDENTIALS,
    "SignatureDoesNotMatch": _CREDENTIALS,
    "Blocked": _CREDENTIALS,
    "UnauthorizedOperation": _NOT_ALLOWED,
    "AccessDenied": _NOT_ALLOWED,
    "AccessDeniedException": _NOT_ALLOWED,
    "OptInRequired": _WRONG_IN_REGION,
    "PendingVerification": Row(FaultKind.AVOID_REGION, Reason.BAD_REQUEST, 3600.0, any_market=True, any_type=True),
    "AuthFailure.ServiceLinkedRoleCreationNotPermitted": Row(
        FaultKind.GIVE_UP,
        Reason.BAD_REQUEST,
        any_type=True,
        whole_region=True,
        hint="run `aws iam create-service-linked-role --aws-service-name spot.amazonaws.com` once",
    ),
    # where it should stand
    "VPCIdNotSpecified": _NO_NETWORK,
    "MissingInput": _NO_NETWORK,
    "VPCResourceNotSpecified": _NO_NETWORK,
    # the request itself
    "IdempotentParameterMismatch": _PASSING,
    "ParameterNotFound": _WRONG_IN_REGION,
}

# For codes that come in many kinds; the longest that fits counts.
PREFIXES: dict[str, Row] = {
    "Throttling": _THROTTLED,
    "InvalidAMIID.": _WRONG,
    "InvalidKeyPair.": _WRONG,
    "InvalidParameter": _WRONG,
    "InvalidBlockDeviceMapping": _WRONG,
    "InvalidGroup.": _WRONG,
    "InvalidSubnet": _WRONG,
    "MissingParameter": _WRONG,
    "UnknownParameter": _WRONG,
    "Malformed": _WRONG,
    "InvalidInstanceID.": _WRONG,
    "InvalidTag": _WRONG,
    "TagLimitExceeded": _WRONG,
}

# Exceptions of botocore's own, by class name: nothing was sent, or no connection came about.
CLIENT_SIDE: dict[str, Row] = {
    "NoCredentialsError": _CREDENTIALS,
    "PartialCredentialsError": _CREDENTIALS,
    "CredentialRetrievalError": _CREDENTIALS,
    "TokenRetrievalError": _CREDENTIALS,
    "UnauthorizedSSOTokenError": _CREDENTIALS,
    "ProfileNotFound": _CREDENTIALS,
    "ParamValidationError": _WRONG,
    "EndpointConnectionError": _THROTTLED,
    "ConnectTimeoutError": _THROTTLED,
}


class Refused(Exception):
    """A request that is not even sent. `code` is one of `CODES` or `PREFIXES`."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def code_of(error: Exception) -> str:
    """EC2's code of an error; the class's name where EC2 has not spoken."""
    if isinstance(error, Refused):
        return error.code
    response = getattr(error, "response", None)
    code = response.get("Error", {}).get("Code") if isinstance(response, dict) else None
    return str(code) if code else type(error).__name__


def classify(error: Exception) -> Fault:
    code = code_of(error)
    row = _row(code, error)
    told = _message(error)
    if row is None:
        return Fault(FaultKind.FIND_OUT, Reason.NO_CAPACITY, code, told)
    return Fault(
        row.kind,
        row.reason,
        code,
        f"{told}; {row.hint}" if row.hint else told,
        row.retry_after_s,
        whole_region=row.whole_region or row.kind is FaultKind.AVOID_REGION,
        whole_cloud=row.kind is FaultKind.AVOID_CLOUD,
        any_market=row.any_market,
        any_instance_type=row.any_type,
    )


def _row(code: str, error: Exception) -> Row | None:
    if code in CODES:
        return CODES[code]
    fitting = [prefix for prefix in PREFIXES if code.startswith(prefix)]
    if fitting:
        return PREFIXES[max(fitting, key=len)]
    return next((CLIENT_SIDE[c.__name__] for c in type(error).__mro__ if c.__name__ in CLIENT_SIDE), None)


def _message(error: Exception) -> str:
    response = getattr(error, "response", None)
    told = response.get("Error", {}).get("Message") if isinstance(response, dict) else None
    return str(told or error).rstrip(" .")
