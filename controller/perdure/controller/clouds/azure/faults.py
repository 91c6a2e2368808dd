"""What Azure's errors mean, as data.

Codes: learn.microsoft.com/azure/virtual-machines/error-codes-spot, …/azure-resource-manager/troubleshooting/
common-deployment-errors, and the allocation failures of …/troubleshoot/azure/virtual-machines.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from perdure.controller.clouds import faulting
from perdure.controller.clouds.base import Fault
from perdure.controller.clouds.faulting import Refused, Row, Table
from perdure.recovery.market import FaultKind
from perdure.recovery.reasons import Reason

_NO_SPOT_S = 3600.0  # a size that a zone does not sell now stays so for a while
_LONG_S = 24 * 3600.0

_FULL = Row(FaultKind.AVOID_ZONE, Reason.NO_CAPACITY)
_FULL_REGION = Row(FaultKind.AVOID_REGION, Reason.NO_CAPACITY)
_ASK_FOR_MORE = "ask Azure for a higher quota in this region, or allow others"
_QUOTA = Row(FaultKind.AVOID_REGION, Reason.QUOTA, hint=_ASK_FOR_MORE)
_QUOTA_OF_MARKET = Row(FaultKind.AVOID_REGION, Reason.QUOTA, any_type=True, hint=_ASK_FOR_MORE)
_QUOTA_OF_REGION = Row(FaultKind.AVOID_REGION, Reason.QUOTA, any_market=True, any_type=True, hint=_ASK_FOR_MORE)
_NO_QUOTA_AT_ALL = Row(FaultKind.AVOID_REGION, Reason.QUOTA, _LONG_S, hint=_ASK_FOR_MORE)
_THROTTLED = Row(FaultKind.RETRY_LATER, Reason.THROTTLED, any_market=True, any_type=True, whole_region=True)
_PASSING = Row(FaultKind.FIND_OUT, Reason.NO_CAPACITY)
_WRONG = Row(FaultKind.GIVE_UP, Reason.BAD_REQUEST, any_market=True)
_WRONG_FOR_SPOT = Row(FaultKind.GIVE_UP, Reason.BAD_REQUEST)
_WRONG_IN_REGION = Row(FaultKind.AVOID_REGION, Reason.BAD_REQUEST, _LONG_S, any_market=True, any_type=True)
_CREDENTIALS = Row(
    FaultKind.AVOID_CLOUD,
    Reason.BAD_CREDENTIALS,
    any_market=True,
    any_type=True,
    hint="give the controller working Azure credentials (`az account show` must succeed where it runs)",
)
_SUBSCRIPTION = Row(
    FaultKind.AVOID_CLOUD,
    Reason.BAD_CREDENTIALS,
    any_market=True,
    any_type=True,
    hint="name a subscription in azure.subscription that is enabled, and that the controller may use",
)
_NOT_ALLOWED = Row(
    FaultKind.AVOID_CLOUD,
    Reason.BAD_CREDENTIALS,
    any_market=True,
    any_type=True,
    hint="give the controller a role that allows what deploy/iam/azure-controller.json lists",
)
_NOT_REGISTERED = Row(
    FaultKind.AVOID_CLOUD,
    Reason.BAD_REQUEST,
    any_market=True,
    any_type=True,
    hint="run `az provider register -n Microsoft.Compute` and `-n Microsoft.Network` once",
)

CODES: dict[str, Row] = {
    # no room
    "SkuNotAvailable": Row(FaultKind.AVOID_ZONE, Reason.NO_CAPACITY, _NO_SPOT_S),
    "ZonalAllocationFailed": Row(FaultKind.AVOID_ZONE, Reason.NO_CAPACITY, any_market=True),
    "OverconstrainedZonalAllocationRequest": _FULL,
    "AllocationFailed": _FULL_REGION,
    "OverconstrainedAllocationRequest": _FULL_REGION,
    "SpotPriceGreaterThanProvidedMaxPrice": Row(FaultKind.AVOID_ZONE, Reason.PRICE, 600.0),
    # quotas: each region has its own, and spot's is apart from that of the families; `MESSAGES` tells more
    "QuotaExceeded": _QUOTA,
    "ResourceQuotaExceeded": _QUOTA_OF_REGION,
    "PublicIPCountLimitReached": _QUOTA_OF_REGION,
    "IPv4StandardSkuPublicIpCountLimitReached": _QUOTA_OF_REGION,
    "SubnetIsFull": Row(FaultKind.AVOID_REGION, Reason.NO_CAPACITY, 600.0, any_market=True, any_type=True),
    # too fast: nothing happened
    "TooManyRequests": _THROTTLED,
    "RateLimitExceeded": _THROTTLED,
    "SubscriptionRequestsThrottled": _THROTTLED,
    "ResourceCollectionRequestsThrottled": _THROTTLED,
    "OperationNotAllowedDueToThrottling": _THROTTLED,
    "ServerBusy": _THROTTLED,
    # Azure's own trouble, or two calls at once: it may have happened, the same name tells
    "InternalServerError": _PASSING,
    "InternalExecutionError": _PASSING,
    "InternalOperationError": _PASSING,
    "NetworkingInternalOperationError": _PASSING,
    "RetryableError": _PASSING,
    "RetryableErrorDueToAnotherOperation": _PASSING,
    "AnotherOperationInProgress": _PASSING,
    "OperationPreempted": _PASSING,
    "Conflict": _PASSING,
    "ServerTimeout": _PASSING,
    "GatewayTimeout": _PASSING,
    "OperationTimedOut": _PASSING,
    "ServiceUnavailable": _PASSING,
    # what was just made is not ready everywhere at once
    "ReferencedResourceNotProvisioned": _PASSING,
    "InvalidResourceReference": _PASSING,
    "ResourceGroupNotFound": _PASSING,
    "SubnetNotFound": Row(
        FaultKind.AVOID_REGION,
        Reason.BAD_REQUEST,
        _LONG_S,
        any_market=True,
        any_type=True,
        hint="correct azure.subnets in config.yaml",
    ),
    "ResourceGroupBeingDeleted": Row(FaultKind.AVOID_REGION, Reason.BAD_REQUEST, 600.0, any_market=True, any_type=True),
    # who we are, and what we may do
    "ClientAuthenticationError": _CREDENTIALS,
    "AuthenticationFailed": _CREDENTIALS,
    "InvalidAuthenticationToken": _CREDENTIALS,
    "InvalidAuthenticationTokenTenant": _CREDENTIALS,
    "ExpiredAuthenticationToken": _CREDENTIALS,
    "SubscriptionNotFound": _SUBSCRIPTION,
    "InvalidSubscriptionId": _SUBSCRIPTION,
    "ReadOnlyDisabledSubscription": _SUBSCRIPTION,
    "SubscriptionDisabled": _SUBSCRIPTION,
    "AuthorizationFailed": _NOT_ALLOWED,
    "AuthorizationFailure": _NOT_ALLOWED,
    "AuthorizationPermissionMismatch": _NOT_ALLOWED,
    "LinkedAuthorizationFailed": _NOT_ALLOWED,
    "Forbidden": _NOT_ALLOWED,
    "MissingSubscriptionRegistration": _NOT_REGISTERED,
    "SubscriptionNotRegistered": _NOT_REGISTERED,
    "RequestDisallowedByPolicy": _WRONG_IN_REGION,
    "RequestDisallowedByAzure": _WRONG_IN_REGION,
    "LocationNotAvailableForResourceType": _WRONG_IN_REGION,
    "NoRegisteredProviderFound": _WRONG_IN_REGION,
    # the request itself
    "OperationNotAllowed": _WRONG,
    "MaxPriceValueInvalid": _WRONG_FOR_SPOT,
    "AzureSpotFeatureNotEnabledForSubscription": _WRONG_FOR_SPOT,
    "AzureSpotIsNotSupportedForThisVMSize": _WRONG_FOR_SPOT,
    "AzureSpotVMNotSupportedInAvailabilitySet": _WRONG_FOR_SPOT,
    "EvictionPolicyCanBeSetOnlyOnAzureSpotVirtualMachines": _WRONG,
    "BadRequest": _WRONG,
    "NotSupported": _WRONG,
    "ResourceNotFound": _WRONG,
    "NotFound": _WRONG,
    "PlatformImageNotFound": _WRONG,
    "ImageNotFound": _WRONG,
    "GalleryImageNotFound": _WRONG,
    "ResourcePurchaseValidationFailed": _WRONG,
    "MarketplacePurchaseEligibilityFailed": _WRONG,
    "LinkedInvalidPropertyId": _WRONG,
    "DiskSizeSmallerThanImage": _WRONG,
}

# For codes that come in many kinds; the longest that fits counts.
PREFIXES: dict[str, Row] = {"Invalid": _WRONG, "Missing": _WRONG}

# Codes that mean several things, told apart by what the message holds (in lower case); the first that fits counts.
MESSAGES: tuple[tuple[str, str, Row], ...] = tuple(
    (code, held, row)
    for code in ("OperationNotAllowed", "QuotaExceeded")
    for held, row in (
        ("lowprioritycores", _QUOTA_OF_MARKET),
        ("total regional", _QUOTA_OF_REGION),
        ("current limit: 0,", _NO_QUOTA_AT_ALL),
        ("family cores quota", _QUOTA),
        ("quota", _QUOTA),
    )
)

# Another machine has it still. Azure keeps an interface for a machine that was not made for 180 seconds.
IN_USE = {
    "InUseNetworkSecurityGroupCannotBeDeleted",
    "NicInUse",
    "NicReservedForAnotherVm",
    "PublicIPAddressCannotBeDeleted",
    "AnotherOperationInProgress",
    "RetryableError",
    "RetryableErrorDueToAnotherOperation",
}

# By the answer's status, where it holds no code of Azure's.
STATUSES: dict[int, str] = {
    401: "AuthenticationFailed",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    412: "PreconditionFailed",
    429: "TooManyRequests",
    500: "InternalServerError",
    502: "GatewayTimeout",
    503: "ServiceUnavailable",
    504: "GatewayTimeout",
}

# Exceptions of the SDK's own, by class name: nothing was sent, or nobody let us in.
EXCEPTIONS: dict[str, Row] = {
    "CredentialUnavailableError": _CREDENTIALS,
    "ClientAuthenticationError": _CREDENTIALS,
    "ServiceRequestError": _THROTTLED,
    "SerializationError": _WRONG,
}

TABLE = Table(CODES, PREFIXES, EXCEPTIONS)


def code_of(error: Exception) -> str:
    """Azure's code of an error; the class's name where Azure has not spoken."""
    if isinstance(error, Refused):
        return error.code
    told = getattr(getattr(error, "error", None), "code", None) or _headers(error).get("x-ms-error-code")  # Storage's
    status = getattr(error, "status_code", None)
    return str(told or STATUSES.get(status or 0) or type(error).__name__)


def classify(error: Exception) -> Fault:
    code, told = code_of(error), _message(error)
    row = row_of(code, told) or TABLE.row(code, error)
    fault = faulting.fault(row, code, told)
    return replace(fault, retry_after_s=_retry_after_s(error)) if row is _THROTTLED else fault


def row_of(code: str, message: str) -> Row | None:
    """What `MESSAGES` says; None if nothing."""
    held = message.lower()
    return next((row for of, part, row in MESSAGES if of == code and part in held), None)


def is_passing(error: Exception) -> bool:
    """Whether it is about something that was made a moment ago, or is gone in a moment: the same call again may do."""
    code = code_of(error)
    slow = code == "FailedIdentityOperation" and "was not found" in _message(error)
    return slow or code in IN_USE or CODES.get(code) is _PASSING


def is_not_there(error: Exception) -> bool:
    """Whether what was asked about does not exist."""
    return getattr(error, "status_code", None) == 404


def _message(error: Exception) -> str:
    return str(getattr(getattr(error, "error", None), "message", None) or error)


def _retry_after_s(error: Exception) -> float | None:
    """Azure's own word, in seconds; None without one."""
    told = _headers(error).get("Retry-After", "")
    return float(told) if told.isdecimal() else None


def _headers(error: Exception) -> Mapping[str, str]:
    return getattr(getattr(error, "response", None), "headers", None) or {}
