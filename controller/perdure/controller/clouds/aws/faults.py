"""The meaning of EC2's errors, as data. Codes: docs.aws.amazon.com/AWSEC2/latest/APIReference/errors-overview.html

An unlisted code may mean anything. The launch may have succeeded, so it is repeated with its token.
"""

from __future__ import annotations

import re

from perdure.controller.clouds.aws.iam import denial
from perdure.controller.clouds.base import faults
from perdure.controller.clouds.base.faults import CloudRejected, FaultRule, FaultTable
from perdure.controller.clouds.base.protocol import Fault
from perdure.recovery.market.unavailable import FaultKind
from perdure.recovery.reasons import Reason

_FULL = FaultRule(FaultKind.AVOID_ZONE, Reason.NO_CAPACITY)
_QUOTA = FaultRule(
    FaultKind.AVOID_REGION, Reason.QUOTA, hint="ask AWS for a higher quota in this region, or allow others"
)
_QUOTA_OF_REGION = FaultRule(FaultKind.AVOID_REGION, Reason.QUOTA, any_market=True, any_type=True, hint=_QUOTA.hint)
_THROTTLED = FaultRule(FaultKind.RETRY_LATER, Reason.THROTTLED, any_market=True, any_type=True, whole_region=True)
_AMBIGUOUS = FaultRule(FaultKind.AMBIGUOUS, Reason.NO_CAPACITY)
_WRONG = FaultRule(FaultKind.GIVE_UP, Reason.BAD_REQUEST, any_market=True)
_WRONG_IN_REGION = FaultRule(FaultKind.AVOID_REGION, Reason.BAD_REQUEST, 24 * 3600.0, any_market=True, any_type=True)
# A task's image may be the cause: other jobs may still be launched.
_WRONG_IMAGE_IN_REGION = FaultRule(
    FaultKind.GIVE_UP, Reason.BAD_REQUEST, any_market=True, any_type=True, whole_region=True
)
_WRONG_IMAGE = FaultRule(FaultKind.GIVE_UP, Reason.BAD_REQUEST, any_market=True, any_type=True, whole_cloud=True)
# So may its instance type, its disk or its labels be the cause of a denial.
_DENIED_REQUEST = FaultRule(
    FaultKind.GIVE_UP,
    Reason.BAD_REQUEST,
    any_market=True,
    whole_region=True,
    hint="allow another instance type or region, or have the policy changed that denies it",
)
_DENIED_REGION = FaultRule(
    FaultKind.AVOID_REGION,
    Reason.BAD_REQUEST,
    24 * 3600.0,
    any_market=True,
    any_type=True,
    hint="leave the region out of aws.regions, or have the policy changed that denies it",
)
_CREDENTIALS = FaultRule(
    FaultKind.AVOID_CLOUD,
    Reason.BAD_CREDENTIALS,
    any_market=True,
    any_type=True,
    hint="give the controller working AWS credentials (`aws sts get-caller-identity` must succeed where it runs)",
)
_NOT_ALLOWED = FaultRule(
    FaultKind.AVOID_CLOUD,
    Reason.BAD_CREDENTIALS,
    any_market=True,
    any_type=True,
    hint="allow what deploy/iam/aws-controller.json lists",
)
_NOT_YET_VISIBLE = FaultRule(FaultKind.RETRY_LATER, Reason.NO_CAPACITY)
# Of security groups: they concern the jobs that open ports, in that region.
_GROUPS_LIMITED = FaultRule(
    FaultKind.GIVE_UP,
    Reason.QUOTA,
    any_market=True,
    any_type=True,
    whole_region=True,
    hint="open fewer ports (`resources.ports`), delete security groups, or ask AWS for a higher quota in this region",
)
_NO_NETWORK = FaultRule(
    FaultKind.AVOID_ZONE,
    Reason.BAD_REQUEST,
    24 * 3600.0,
    any_market=True,
    any_type=True,
    hint="create one (`aws ec2 create-default-vpc`, `create-default-subnet`), or name one in aws.subnets",
)

CODES: dict[str, FaultRule] = {
    # no capacity
    "InsufficientInstanceCapacity": _FULL,
    "UnfulfillableCapacity": _FULL,
    "InsufficientCapacity": _FULL,
    "InsufficientHostCapacity": _FULL,
    "InsufficientReservedInstanceCapacity": _FULL,
    "ReservationCapacityExceeded": _FULL,
    "InsufficientVolumeCapacity": FaultRule(FaultKind.AVOID_ZONE, Reason.NO_CAPACITY, any_market=True, any_type=True),
    "Unsupported": FaultRule(FaultKind.AVOID_ZONE, Reason.NO_CAPACITY, 6 * 3600.0, any_market=True),
    "InsufficientFreeAddressesInSubnet": FaultRule(
        FaultKind.AVOID_ZONE, Reason.NO_CAPACITY, 600.0, any_market=True, any_type=True
    ),
    "SpotMaxPriceTooLow": FaultRule(FaultKind.AVOID_ZONE, Reason.PRICE, 600.0),
    # quotas: per region, and separate for spot and on-demand
    "MaxSpotInstanceCountExceeded": _QUOTA,
    "VcpuLimitExceeded": _QUOTA,
    "InstanceLimitExceeded": _QUOTA,
    "MaxFleetCountExceeded": _QUOTA,
    "VolumeLimitExceeded": _QUOTA_OF_REGION,
    "MaxIOPSLimitExceeded": _QUOTA_OF_REGION,
    "NetworkInterfaceLimitExceeded": _QUOTA_OF_REGION,
    "AddressLimitExceeded": _QUOTA_OF_REGION,
    "HostLimitExceeded": _QUOTA,
    "SecurityGroupLimitExceeded": _GROUPS_LIMITED,
    "RulesPerSecurityGroupLimitExceeded": _GROUPS_LIMITED,
    "SecurityGroupsPerInterfaceLimitExceeded": _GROUPS_LIMITED,
    "SecurityGroupsPerInstanceLimitExceeded": _GROUPS_LIMITED,
    # throttled: nothing happened
    "TooManyRequestsException": _THROTTLED,
    "RequestLimitExceeded": _THROTTLED,
    "Throttling": _THROTTLED,
    "ThrottlingException": _THROTTLED,
    "ThrottledException": _THROTTLED,
    "RequestThrottled": _THROTTLED,
    "RequestThrottledException": _THROTTLED,
    # internal errors of EC2: the call may have succeeded; repeat it with its token
    "InternalError": _AMBIGUOUS,
    "InternalFailure": _AMBIGUOUS,
    "ServiceUnavailable": _AMBIGUOUS,
    "Unavailable": _AMBIGUOUS,
    "RequestTimeout": _AMBIGUOUS,
    # eventual consistency: a new resource is not visible everywhere yet
    "InvalidInstanceID.NotFound": _NOT_YET_VISIBLE,
    "InvalidSubnetID.NotFound": _NOT_YET_VISIBLE,
    "InvalidGroup.NotFound": _NOT_YET_VISIBLE,
    "InvalidSecurityGroupID.NotFound": _NOT_YET_VISIBLE,
    "InstanceStillStopping": _NOT_YET_VISIBLE,  # ours, of a start
    # credentials and permissions
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
    "PendingVerification": FaultRule(
        FaultKind.AVOID_REGION, Reason.BAD_REQUEST, 3600.0, any_market=True, any_type=True
    ),
    "AuthFailure.ServiceLinkedRoleCreationNotPermitted": FaultRule(
        FaultKind.GIVE_UP,
        Reason.BAD_REQUEST,
        any_type=True,
        whole_region=True,
        hint="run `aws iam create-service-linked-role --aws-service-name spot.amazonaws.com` once",
    ),
    # the network
    "VPCIdNotSpecified": _NO_NETWORK,
    "MissingInput": _NO_NETWORK,
    "VPCResourceNotSpecified": _NO_NETWORK,
    # the request itself
    "IdempotentParameterMismatch": _AMBIGUOUS,
    "ParameterNotFound": _WRONG_IN_REGION,
    "IncorrectInstanceState": _WRONG,
    "UnsupportedOperation": _WRONG,
}

PREFIXES: dict[str, FaultRule] = {
    "KMS": _WRONG_IMAGE_IN_REGION,
    "InvalidKMSKey": _WRONG_IMAGE_IN_REGION,
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

MISSING_GROUP = ("InvalidGroup.NotFound", "InvalidSecurityGroupID.NotFound")

# (pattern of the message, rule), for codes with several meanings; the first match counts.
MESSAGES: tuple[tuple[str, FaultRule], ...] = (
    # Landing zones deny regions, not the account: docs.aws.amazon.com/IAM/latest/UserGuide/troubleshoot_access-denied
    # So do permissions boundaries and policies of permission sets. A missing permission concerns all regions.
    # What only reads does not depend on the machine that a job wants, so it is the region that is denied; a launch may
    # be denied for its instance type, an unencrypted disk or a missing tag.
    (r"perform: [a-z0-9-]+:(Describe|Get|List).* with an explicit deny in ", _DENIED_REGION),
    (f" with an explicit deny in .*{re.escape(denial.DENIES_REGION)}", _DENIED_REGION),
    (" with an explicit deny in ", _DENIED_REQUEST),
    # The code is that of a region that the account has not enabled, too.
    ("accept terms and subscribe", _WRONG_IMAGE),
    # The built-in table contains zones that not every account has.
    (
        "Invalid availability zone",
        FaultRule(FaultKind.AVOID_ZONE, Reason.NO_CAPACITY, 24 * 3600.0, any_market=True, any_type=True),
    ),
)

# botocore's own exceptions, by class name: nothing was sent, or the connection failed.
CLIENT_SIDE: dict[str, FaultRule] = {
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


TABLE = FaultTable(CODES, PREFIXES, CLIENT_SIDE)


def code_of(error: Exception) -> str:
    """EC2's code of an error; the name of the exception's class if EC2 did not respond."""
    if isinstance(error, CloudRejected):
        return error.code
    response = getattr(error, "response", None)
    code = response.get("Error", {}).get("Code") if isinstance(response, dict) else None
    return str(code) if code else type(error).__name__


def classify(error: Exception) -> Fault:
    code, message = code_of(error), _message(error)
    rule = next((rule for pattern, rule in MESSAGES if re.search(pattern, message)), None)
    return faults.to_fault(rule or TABLE.rule(code, error), code, message)


def _message(error: Exception) -> str:
    response = getattr(error, "response", None)
    message = response.get("Error", {}).get("Message") if isinstance(response, dict) else None
    return str(message or error)
