"""The meaning of Azure's errors, as data.

Codes: learn.microsoft.com/azure/virtual-machines/error-codes-spot, …/azure-resource-manager/troubleshooting/
common-deployment-errors, and the allocation failures of …/troubleshoot/azure/virtual-machines.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from perdure.controller.clouds.base import faults
from perdure.controller.clouds.base.faults import CloudRejected, FaultRule, FaultTable
from perdure.controller.clouds.base.protocol import Fault
from perdure.recovery.market.unavailable import FaultKind
from perdure.recovery.reasons import Reason

_NO_SPOT_S = 3600.0  # a size that a zone does not offer now will be unavailable for a while
_LONG_S = 24 * 3600.0

_FULL = FaultRule(FaultKind.AVOID_ZONE, Reason.NO_CAPACITY)
_FULL_REGION = FaultRule(FaultKind.AVOID_REGION, Reason.NO_CAPACITY)
_ASK_FOR_MORE = "ask Azure for a higher quota in this region, or allow others"
_QUOTA = FaultRule(FaultKind.AVOID_REGION, Reason.QUOTA, hint=_ASK_FOR_MORE)
_QUOTA_OF_MARKET = FaultRule(FaultKind.AVOID_REGION, Reason.QUOTA, any_type=True, hint=_ASK_FOR_MORE)
_QUOTA_OF_REGION = FaultRule(FaultKind.AVOID_REGION, Reason.QUOTA, any_market=True, any_type=True, hint=_ASK_FOR_MORE)
_NO_QUOTA_AT_ALL = FaultRule(FaultKind.AVOID_REGION, Reason.QUOTA, _LONG_S, hint=_ASK_FOR_MORE)
_THROTTLED = FaultRule(FaultKind.RETRY_LATER, Reason.THROTTLED, any_market=True, any_type=True, whole_region=True)
_AMBIGUOUS = FaultRule(FaultKind.AMBIGUOUS, Reason.NO_CAPACITY)
_WRONG = FaultRule(FaultKind.GIVE_UP, Reason.BAD_REQUEST, any_market=True)
_WRONG_FOR_SPOT = FaultRule(FaultKind.GIVE_UP, Reason.BAD_REQUEST)
_WRONG_IN_REGION = FaultRule(FaultKind.AVOID_REGION, Reason.BAD_REQUEST, _LONG_S, any_market=True, any_type=True)
# A policy may object to the instance type, the image or the tags of one task: other jobs may still be allowed.
_AGAINST_POLICY = FaultRule(
    FaultKind.GIVE_UP,
    Reason.BAD_REQUEST,
    any_market=True,
    whole_region=True,
    hint="allow another instance type or region, or have the policy changed",
)
_CREDENTIALS = FaultRule(
    FaultKind.AVOID_CLOUD,
    Reason.BAD_CREDENTIALS,
    any_market=True,
    any_type=True,
    hint="give the controller working Azure credentials (`az account show` must succeed where it runs)",
)
_SUBSCRIPTION = FaultRule(
    FaultKind.AVOID_CLOUD,
    Reason.BAD_CREDENTIALS,
    any_market=True,
    any_type=True,
    hint="name a subscription in azure.subscription that is enabled, and that the controller may use",
)
_NOT_ALLOWED = FaultRule(
    FaultKind.AVOID_CLOUD,
    Reason.BAD_CREDENTIALS,
    any_market=True,
    any_type=True,
    hint="give the controller a role that allows what deploy/iam/azure-controller.json lists",
)
_NOT_REGISTERED = FaultRule(
    FaultKind.AVOID_CLOUD,
    Reason.BAD_REQUEST,
    any_market=True,
    any_type=True,
    hint="run `az provider register -n Microsoft.Compute` and `-n Microsoft.Network` once",
)

_LOCKED = FaultRule(
    FaultKind.AVOID_CLOUD,
    Reason.BAD_REQUEST,
    any_market=True,
    any_type=True,
    hint="remove the lock from the resource group, or name another in azure.resource_group",
)

CODES: dict[str, FaultRule] = {
    # no capacity
    "SkuNotAvailable": FaultRule(FaultKind.AVOID_ZONE, Reason.NO_CAPACITY, _NO_SPOT_S),
    "ZonalAllocationFailed": FaultRule(FaultKind.AVOID_ZONE, Reason.NO_CAPACITY, any_market=True),
    "OverconstrainedZonalAllocationRequest": _FULL,
    "AllocationFailed": _FULL_REGION,
    "OverconstrainedAllocationRequest": _FULL_REGION,
    "SpotPriceGreaterThanProvidedMaxPrice": FaultRule(FaultKind.AVOID_ZONE, Reason.PRICE, 600.0),
    # quotas: per region, with one for spot and one per family; `MESSAGES` distinguishes them
    "QuotaExceeded": _QUOTA,
    "ResourceQuotaExceeded": _QUOTA_OF_REGION,
    "DiskQuotaExceeded": _QUOTA_OF_REGION,
    "SpotPercentageExceeded": _QUOTA_OF_MARKET,
    "NotAvailableForSubscription": FaultRule(FaultKind.AVOID_REGION, Reason.NO_CAPACITY, _LONG_S, any_market=True),
    "PublicIPCountLimitReached": _QUOTA_OF_REGION,
    "IPv4StandardSkuPublicIpCountLimitReached": _QUOTA_OF_REGION,
    "SubnetIsFull": FaultRule(FaultKind.AVOID_REGION, Reason.NO_CAPACITY, 600.0, any_market=True, any_type=True),
    # throttled: nothing happened
    "TooManyRequests": _THROTTLED,
    "RateLimitExceeded": _THROTTLED,
    "SubscriptionRequestsThrottled": _THROTTLED,
    "ResourceCollectionRequestsThrottled": _THROTTLED,
    "OperationNotAllowedDueToThrottling": _THROTTLED,
    "ServerBusy": _THROTTLED,
    # internal errors of Azure, or concurrent calls: the call may have succeeded; repeat it with the same name
    "InternalServerError": _AMBIGUOUS,
    "InternalExecutionError": _AMBIGUOUS,
    "InternalOperationError": _AMBIGUOUS,
    "NetworkingInternalOperationError": _AMBIGUOUS,
    "RetryableError": _AMBIGUOUS,
    "RetryableErrorDueToAnotherOperation": _AMBIGUOUS,
    "AnotherOperationInProgress": _AMBIGUOUS,
    "OperationPreempted": _AMBIGUOUS,
    "Conflict": _AMBIGUOUS,
    "ServerTimeout": _AMBIGUOUS,
    "GatewayTimeout": _AMBIGUOUS,
    "OperationTimedOut": _AMBIGUOUS,
    "ServiceUnavailable": _AMBIGUOUS,
    # eventual consistency: a new resource is not visible everywhere yet
    "ReferencedResourceNotProvisioned": _AMBIGUOUS,
    "InvalidResourceReference": _AMBIGUOUS,
    "ResourceGroupNotFound": _AMBIGUOUS,
    "SubnetNotFound": FaultRule(
        FaultKind.AVOID_REGION,
        Reason.BAD_REQUEST,
        _LONG_S,
        any_market=True,
        any_type=True,
        hint="correct azure.subnets in config.yaml",
    ),
    "ResourceGroupBeingDeleted": FaultRule(
        FaultKind.AVOID_REGION, Reason.BAD_REQUEST, 600.0, any_market=True, any_type=True
    ),
    # credentials and permissions
    "ClientAuthenticationError": _CREDENTIALS,
    "AuthenticationFailed": _CREDENTIALS,
    "InvalidAuthenticationToken": _CREDENTIALS,
    "InvalidAuthenticationTokenTenant": _CREDENTIALS,
    "ExpiredAuthenticationToken": _CREDENTIALS,
    "SubscriptionNotFound": _SUBSCRIPTION,
    "InvalidSubscriptionId": _SUBSCRIPTION,
    "ReadOnlyDisabledSubscription": _SUBSCRIPTION,
    "AccountOverdue": _SUBSCRIPTION,
    "ScopeLocked": _LOCKED,
    "SubscriptionDisabled": _SUBSCRIPTION,
    "AuthorizationFailed": _NOT_ALLOWED,
    "AuthorizationFailure": _NOT_ALLOWED,
    "AuthorizationPermissionMismatch": _NOT_ALLOWED,
    "LinkedAuthorizationFailed": _NOT_ALLOWED,
    "Forbidden": _NOT_ALLOWED,
    "MissingSubscriptionRegistration": _NOT_REGISTERED,
    "SubscriptionNotRegistered": _NOT_REGISTERED,
    "RequestDisallowedByPolicy": _AGAINST_POLICY,
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

# By the start of a code; the longest match counts.
PREFIXES: dict[str, FaultRule] = {"Invalid": _WRONG, "Missing": _WRONG}

# The built-in definition "Allowed locations": learn.microsoft.com/azure/governance/policy/samples/built-in-policies
_ALLOWED_LOCATIONS = "e56962a6-4747-49cd-b67b-bf8b01975c4c"

# (code, text in the lower-case message, rule), for codes with several meanings; the first match counts.
MESSAGES: tuple[tuple[str, str, FaultRule], ...] = (
    ("RequestDisallowedByPolicy", _ALLOWED_LOCATIONS, _WRONG_IN_REGION),
    *(
        (code, held, row)
        for code in ("OperationNotAllowed", "QuotaExceeded")
        for held, row in (
            ("lowprioritycores", _QUOTA_OF_MARKET),
            ("total regional", _QUOTA_OF_REGION),
            ("current limit: 0,", _NO_QUOTA_AT_ALL),
            ("family cores quota", _QUOTA),
            ("quota", _QUOTA),
        )
    ),
)

# Another machine still uses the resource. Azure reserves an interface for 180 seconds after a failed creation.
IN_USE = {
    "InUseNetworkSecurityGroupCannotBeDeleted",
    "NicInUse",
    "NicReservedForAnotherVm",
    "PublicIPAddressCannotBeDeleted",
    "AnotherOperationInProgress",
    "RetryableError",
    "RetryableErrorDueToAnotherOperation",
}

MISSING_PERMISSION = "AuthorizationFailed"

# The code for a status, for responses without a code of Azure's.
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

# The SDK's own exceptions, by class name: nothing was sent, or authentication failed.
EXCEPTIONS: dict[str, FaultRule] = {
    "CredentialUnavailableError": _CREDENTIALS,
    "ClientAuthenticationError": _CREDENTIALS,
    "ServiceRequestError": _THROTTLED,
    "SerializationError": _WRONG,
}

TABLE = FaultTable(CODES, PREFIXES, EXCEPTIONS)


def code_of(error: Exception) -> str:
    """Azure's code of an error; the name of the exception's class if Azure did not respond."""
    if isinstance(error, CloudRejected):
        return error.code
    code = getattr(getattr(error, "error", None), "code", None) or _headers(error).get("x-ms-error-code")  # Storage's
    status = getattr(error, "status_code", None)
    return str(code or STATUSES.get(status or 0) or type(error).__name__)


def classify(error: Exception) -> Fault:
    code, message = code_of(error), _message(error)
    rule = rule_for_message(code, message) or TABLE.rule(code, error)
    fault = faults.to_fault(rule, code, message)
    return replace(fault, retry_after_s=_retry_after_s(error)) if rule is _THROTTLED else fault


def rule_for_message(code: str, message: str) -> FaultRule | None:
    """The rule of `MESSAGES`; None if there is none."""
    lower = message.lower()
    return next((rule for other, part, rule in MESSAGES if other == code and part in lower), None)


def is_transient(error: Exception) -> bool:
    """Whether the error is about a resource that was just created, or is being deleted: a repeated call may succeed."""
    code = code_of(error)
    is_new_identity = code == "FailedIdentityOperation" and "was not found" in _message(error)
    return is_new_identity or code in IN_USE or CODES.get(code) is _AMBIGUOUS


def is_not_found(error: Exception) -> bool:
    """Whether the resource does not exist."""
    return getattr(error, "status_code", None) == 404


def _message(error: Exception) -> str:
    return str(getattr(getattr(error, "error", None), "message", None) or error)


def _retry_after_s(error: Exception) -> float | None:
    """Azure's Retry-After header, in seconds; None without one."""
    seconds = _headers(error).get("Retry-After", "")
    return float(seconds) if seconds.isdecimal() else None


def _headers(error: Exception) -> Mapping[str, str]:
    return getattr(getattr(error, "response", None), "headers", None) or {}
