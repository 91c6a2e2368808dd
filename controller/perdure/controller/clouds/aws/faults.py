"""What EC2's errors mean, as data. Codes: docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html

A code that is not here may stand for anything: the launch may have happened, so its token is asked for again.
"""

from __future__ import annotations

from perdure.controller.clouds import faulting
from perdure.controller.clouds.base import Fault
from perdure.controller.clouds.faulting import Refused, Row, Table
from perdure.recovery.market import FaultKind
from perdure.recovery.reasons import Reason

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
    "IncorrectInstanceState": _WRONG,
    "UnsupportedOperation": _WRONG,
}

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

# (part of the message, row): where one code stands for several things.
MESSAGES: tuple[tuple[str, Row], ...] = (
    # The table of zones names some that not every account has.
    (
        "Invalid availability zone",
        Row(FaultKind.AVOID_ZONE, Reason.NO_CAPACITY, 24 * 3600.0, any_market=True, any_type=True),
    ),
)

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


TABLE = Table(CODES, PREFIXES, CLIENT_SIDE)


def code_of(error: Exception) -> str:
    """EC2's code of an error; the class's name where EC2 has not spoken."""
    if isinstance(error, Refused):
        return error.code
    response = getattr(error, "response", None)
    code = response.get("Error", {}).get("Code") if isinstance(response, dict) else None
    return str(code) if code else type(error).__name__


def classify(error: Exception) -> Fault:
    code, told = code_of(error), _message(error)
    row = next((row for part, row in MESSAGES if part in told), None)
    return faulting.fault(row or TABLE.row(code, error), code, told)


def _message(error: Exception) -> str:
    response = getattr(error, "response", None)
    told = response.get("Error", {}).get("Message") if isinstance(response, dict) else None
    return str(told or error)
