"""The meaning of Compute Engine's errors, as data: of calls (`reason`) and of operations that fail later (`code`).

Codes: cloud.google.com/compute/docs/troubleshooting/troubleshooting-vm-creation and …/api/errors. An unlisted code may
mean anything. The launch may have succeeded, so it is repeated with its token.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from perdure.controller.clouds.base import faults
from perdure.controller.clouds.base.faults import CloudRejected, FaultRule, FaultTable
from perdure.controller.clouds.base.protocol import Fault
from perdure.recovery.market.unavailable import FaultKind
from perdure.recovery.reasons import Reason

_FULL = FaultRule(FaultKind.AVOID_ZONE, Reason.NO_CAPACITY)
_QUOTA = FaultRule(
    FaultKind.AVOID_REGION, Reason.QUOTA, hint="ask Google for a higher quota in this region, or allow others"
)
_THROTTLED = FaultRule(FaultKind.RETRY_LATER, Reason.THROTTLED, any_market=True, any_type=True, whole_region=True)
_BUSY = FaultRule(FaultKind.RETRY_LATER, Reason.NO_CAPACITY)
_AMBIGUOUS = FaultRule(FaultKind.AMBIGUOUS, Reason.NO_CAPACITY)
_WRONG = FaultRule(FaultKind.GIVE_UP, Reason.BAD_REQUEST, any_market=True)
_NO_ADDRESSES = FaultRule(FaultKind.AVOID_ZONE, Reason.NO_CAPACITY, 30.0, any_market=True, any_type=True)
_NOT_HERE = FaultRule(FaultKind.AVOID_ZONE, Reason.NO_CAPACITY, 24 * 3600.0, any_market=True, any_type=True)
_NOT_OFFERED_HERE = FaultRule(FaultKind.AVOID_ZONE, Reason.NO_CAPACITY, 24 * 3600.0, any_market=True)
_CREDENTIALS = FaultRule(
    FaultKind.AVOID_CLOUD,
    Reason.BAD_CREDENTIALS,
    any_market=True,
    any_type=True,
    hint="give the controller working Google credentials (`gcloud auth application-default print-access-token` must "
    "succeed where it runs), or name a key file in gcp.credentials",
)
_NOT_ALLOWED = FaultRule(
    FaultKind.AVOID_CLOUD,
    Reason.BAD_CREDENTIALS,
    any_market=True,
    any_type=True,
    hint="allow what deploy/iam/gcp-controller.yaml lists",
)
_NOT_SET_UP = FaultRule(
    FaultKind.AVOID_CLOUD,
    Reason.BAD_CREDENTIALS,
    any_market=True,
    any_type=True,
    hint="enable billing and the Compute Engine API for the project (`gcloud services enable compute.googleapis.com`)",
)
_NO_NETWORK = FaultRule(
    FaultKind.AVOID_CLOUD,
    Reason.BAD_REQUEST,
    any_market=True,
    any_type=True,
    hint="create one (`gcloud compute networks create default`), or name one in gcp.network",
)
_NO_SUBNET = FaultRule(
    FaultKind.AVOID_REGION,
    Reason.BAD_REQUEST,
    24 * 3600.0,
    any_market=True,
    any_type=True,
    hint="create one in this region, or name one in gcp.subnets",
)


def _policy(hint: str) -> FaultRule:
    """The rule for a policy of the organization, which concerns every machine of the project."""
    return FaultRule(FaultKind.AVOID_CLOUD, Reason.BAD_REQUEST, any_market=True, any_type=True, hint=hint)


# Policies that a task's own image or instance type may violate: other jobs may still be allowed.
_UNTRUSTED_IMAGE = FaultRule(
    FaultKind.GIVE_UP,
    Reason.BAD_REQUEST,
    any_market=True,
    any_type=True,
    whole_cloud=True,
    hint="name an image of a trusted project in the task's image_id, or in gcp.image",
)
_AGAINST_POLICY = FaultRule(
    FaultKind.GIVE_UP,
    Reason.BAD_REQUEST,
    any_market=True,
    whole_cloud=True,
    hint="have the organization's policy changed, or use another project",
)

# A failed bulk insert has this code in addition to the cause, and sometimes alone.
SUMMARY = "VM_MIN_COUNT_NOT_REACHED"
# The operation is not done yet.
PENDING = "OPERATION_PENDING"
# The resource to create exists already; the resource to delete does not exist.
EXISTS = ("alreadyExists", "RESOURCE_ALREADY_EXISTS")
MISSING = ("notFound", "HTTP 404")
# Another machine still uses the resource, or it is being created.
IN_USE = ("resourceInUseByAnotherResource", "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE", "resourceNotReady")
# The response did not come in time.
TIMED_OUT = ("ReadTimeout",)

CODES: dict[str, FaultRule] = {
    # no capacity
    "ZONE_RESOURCE_POOL_EXHAUSTED": _FULL,
    "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS": _FULL,
    "RESOURCE_POOL_EXHAUSTED": _FULL,
    "REGION_RESOURCE_POOL_EXHAUSTED": FaultRule(FaultKind.AVOID_REGION, Reason.NO_CAPACITY),
    "STOCKOUT": _FULL,
    "GPU_STOCKOUT": _FULL,
    "RESOURCE_EXHAUSTED": _FULL,
    "insufficientCapacity": _FULL,
    SUMMARY: _FULL,
    "UNSUPPORTED_OPERATION": _FULL,  # Google took the capacity back before the machine ran
    "RESOURCE_NOT_READY": _FULL,
    "RESOURCE_NOT_FOUND": _FULL,
    "RESOURCE_OPERATION_RATE_EXCEEDED": _FULL,
    "IP_SPACE_EXHAUSTED": _NO_ADDRESSES,
    "IP_SPACE_EXHAUSTED_WITH_DETAILS": _NO_ADDRESSES,
    # quotas: per region, and separate for spot and on-demand
    "QUOTA_EXCEEDED": _QUOTA,
    "quotaExceeded": _QUOTA,
    "LIMIT_EXCEEDED": _QUOTA,
    # throttled: nothing happened
    "rateLimitExceeded": _THROTTLED,
    "userRateLimitExceeded": _THROTTLED,
    "RATE_LIMIT_EXCEEDED": _THROTTLED,
    "HTTP 429": _THROTTLED,
    "resourceNotReady": _BUSY,
    "resourceInUseByAnotherResource": _BUSY,
    "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE": _BUSY,
    "UNREACHABLE": _THROTTLED,
    # internal errors of Google: the call may have succeeded; repeat it with its token
    PENDING: _AMBIGUOUS,
    "backendError": _AMBIGUOUS,
    "internalError": _AMBIGUOUS,
    "INTERNAL_ERROR": _AMBIGUOUS,
    "HTTP 500": _AMBIGUOUS,
    "HTTP 502": _AMBIGUOUS,
    "HTTP 503": _AMBIGUOUS,
    "HTTP 504": _AMBIGUOUS,
    "alreadyExists": _AMBIGUOUS,
    "RESOURCE_ALREADY_EXISTS": _AMBIGUOUS,
    # credentials and permissions
    "authError": _CREDENTIALS,
    "unauthorized": _CREDENTIALS,
    "HTTP 401": _CREDENTIALS,
    "forbidden": _NOT_ALLOWED,
    "IAM_PERMISSION_DENIED": _NOT_ALLOWED,
    "PERMISSIONS_ERROR": _NOT_ALLOWED,
    "insufficientPermissions": _NOT_ALLOWED,
    "HTTP 403": _NOT_ALLOWED,
    "accessNotConfigured": _NOT_SET_UP,
    "SERVICE_DISABLED": _NOT_SET_UP,
    "BILLING_DISABLED": _NOT_SET_UP,
    "billingNotEnabled": _NOT_SET_UP,
    "UREQ_PROJECT_BILLING_NOT_FOUND": _NOT_SET_UP,
    # the network
    "VPC_NOT_FOUND": _NO_NETWORK,
    "SUBNET_NOT_FOUND_FOR_VPC": _NO_SUBNET,
    # the request itself
    "invalid": _WRONG,
    "badRequest": _WRONG,
    "invalidParameter": _WRONG,
    "conditionNotMet": _WRONG,
    "CONDITION_NOT_MET": _WRONG,
    "notFound": _WRONG,
    "INVALID_USAGE": _WRONG,
    "INVALID_FIELD_VALUE": _WRONG,
    "HTTP 400": _WRONG,
    "HTTP 404": _WRONG,
}

# (pattern of the message, rule), for codes with several meanings.
MESSAGES: tuple[tuple[str, FaultRule], ...] = (
    (
        "GPUS_ALL_REGIONS",
        FaultRule(
            FaultKind.AVOID_CLOUD,
            Reason.QUOTA,
            any_market=True,
            hint="ask Google for a higher quota of GPUs (all regions), or allow another cloud",
        ),
    ),
    # Organization policies: cloud.google.com/resource-manager/docs/organization-policy/org-policy-constraints
    ("constraints/compute.vmExternalIpAccess", _policy("set external_ip: false in the section gcp of config.yaml")),
    ("constraints/compute.trustedImageProjects", _UNTRUSTED_IMAGE),
    (
        "constraints/gcp.resourceLocations",
        FaultRule(
            FaultKind.AVOID_REGION,
            Reason.BAD_REQUEST,
            24 * 3600.0,
            any_market=True,
            any_type=True,
            hint="name the regions that your organization permits in gcp.regions",
        ),
    ),
    ("constraints/[a-z]+\\.", _AGAINST_POLICY),
    ("Location [^ ]+ is not found or access is unauthorized", _NOT_HERE),
    # The built-in table assumes that every zone sells every type.
    ("Machine type .*does not exist in zone", _NOT_OFFERED_HERE),
    ("/(machineTypes|acceleratorTypes)/[^ ]* was not found", _NOT_OFFERED_HERE),
    ("network/default' was not found", _NO_NETWORK),
)

# The libraries' own exceptions, by class name: nothing was sent, or the connection failed.
CLIENT_SIDE: dict[str, FaultRule] = {
    "DefaultCredentialsError": _CREDENTIALS,
    "RefreshError": _CREDENTIALS,
    "MalformedError": _CREDENTIALS,
    "ConnectTimeout": _THROTTLED,
    "TransportError": _THROTTLED,  # of the token service: the call itself was not made
}

TABLE = FaultTable(CODES, exceptions=CLIENT_SIDE)


def classify(error: Exception) -> Fault:
    code, message = code_of(error), _message(error)
    rule = next((rule for pattern, rule in MESSAGES if re.search(pattern, message)), None)
    return faults.to_fault(rule or TABLE.rule(code, error), code, message)


def code_of(error: Exception) -> str:
    """Google's code of an error: the first one in `CODES`. The exception's class name if Google did not respond."""
    if isinstance(error, CloudRejected):
        return error.code
    codes = list(_codes(error))
    return next((code for code in codes if code in CODES), codes[0] if codes else type(error).__name__)


def failure_of(errors: Iterable[Mapping[str, Any]]) -> CloudRejected | None:
    """The cause among an operation's errors (`code`, `message`), in preference to the summary."""
    pairs = [(str(error.get("code") or "?"), str(error.get("message") or "")) for error in errors]
    pairs.sort(key=lambda pair: pair[0] == SUMMARY)
    return CloudRejected(pairs[0][0], pairs[0][1] or pairs[0][0]) if pairs else None


def _codes(error: Exception) -> Iterator[str]:
    if reason := getattr(error, "reason", None):  # of google.rpc.ErrorInfo, which is more specific
        yield str(reason)
    for one in getattr(error, "errors", None) or ():
        if isinstance(one, Mapping) and one.get("reason"):
            yield str(one["reason"])
    if isinstance(code := getattr(error, "code", None), int):
        yield f"HTTP {int(code)}"


def _message(error: Exception) -> str:
    return str(getattr(error, "message", None) or error)
