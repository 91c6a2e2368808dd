"""What Compute Engine's errors mean, as data: of calls (`reason`) and of operations that fail later (`code`).

Codes: cloud.google.com/compute/docs/troubleshooting/troubleshooting-vm-creation and …/api/errors. One that is not here
may stand for anything: the launch may have happened, so its token is asked for again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from perdure.controller.clouds import faulting
from perdure.controller.clouds.base import Fault
from perdure.controller.clouds.faulting import Refused, Row, Table
from perdure.recovery.market import FaultKind
from perdure.recovery.reasons import Reason

_FULL = Row(FaultKind.AVOID_ZONE, Reason.NO_CAPACITY)
_QUOTA = Row(FaultKind.AVOID_REGION, Reason.QUOTA, hint="ask Google for a higher quota in this region, or allow others")
_THROTTLED = Row(FaultKind.RETRY_LATER, Reason.THROTTLED, any_market=True, any_type=True, whole_region=True)
_BUSY = Row(FaultKind.RETRY_LATER, Reason.NO_CAPACITY)
_PASSING = Row(FaultKind.FIND_OUT, Reason.NO_CAPACITY)
_WRONG = Row(FaultKind.GIVE_UP, Reason.BAD_REQUEST, any_market=True)
_NO_ADDRESSES = Row(FaultKind.AVOID_ZONE, Reason.NO_CAPACITY, 30.0, any_market=True, any_type=True)
_NOT_HERE = Row(FaultKind.AVOID_ZONE, Reason.NO_CAPACITY, 24 * 3600.0, any_market=True, any_type=True)
_NOT_SOLD_HERE = Row(FaultKind.AVOID_ZONE, Reason.NO_CAPACITY, 24 * 3600.0, any_market=True)
_CREDENTIALS = Row(
    FaultKind.AVOID_CLOUD,
    Reason.BAD_CREDENTIALS,
    any_market=True,
    any_type=True,
    hint="give the controller working Google credentials (`gcloud auth application-default print-access-token` must "
    "succeed where it runs), or name a key file in gcp.credentials",
)
_NOT_ALLOWED = Row(
    FaultKind.AVOID_CLOUD,
    Reason.BAD_CREDENTIALS,
    any_market=True,
    any_type=True,
    hint="allow what deploy/iam/gcp-controller.yaml lists",
)
_NOT_SET_UP = Row(
    FaultKind.AVOID_CLOUD,
    Reason.BAD_CREDENTIALS,
    any_market=True,
    any_type=True,
    hint="enable billing and the Compute Engine API for the project (`gcloud services enable compute.googleapis.com`)",
)
_NO_NETWORK = Row(
    FaultKind.AVOID_CLOUD,
    Reason.BAD_REQUEST,
    any_market=True,
    any_type=True,
    hint="make one (`gcloud compute networks create default`), or name one in gcp.network",
)
_NO_SUBNET = Row(
    FaultKind.AVOID_REGION,
    Reason.BAD_REQUEST,
    24 * 3600.0,
    any_market=True,
    any_type=True,
    hint="make one in this region, or name one in gcp.subnets",
)

# A bulk insert that came to nothing says this beside the cause, and now and then without one.
SUMMARY = "VM_MIN_COUNT_NOT_REACHED"
# What was begun is not done yet.
PENDING = "OPERATION_PENDING"
# What is to be made is there already; what is to be ended is not.
EXISTS = ("alreadyExists", "RESOURCE_ALREADY_EXISTS")
MISSING = ("notFound", "HTTP 404")
# Another machine has it still, or it is being made.
IN_USE = ("resourceInUseByAnotherResource", "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE", "resourceNotReady")
# The answer did not come in time.
TIMED_OUT = ("ReadTimeout",)

CODES: dict[str, Row] = {
    # no room
    "ZONE_RESOURCE_POOL_EXHAUSTED": _FULL,
    "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS": _FULL,
    "STOCKOUT": _FULL,
    "insufficientCapacity": _FULL,
    SUMMARY: _FULL,
    "UNSUPPORTED_OPERATION": _FULL,  # it was given, and taken back before it ran
    "RESOURCE_NOT_READY": _FULL,
    "RESOURCE_NOT_FOUND": _FULL,
    "RESOURCE_OPERATION_RATE_EXCEEDED": _FULL,
    "IP_SPACE_EXHAUSTED": _NO_ADDRESSES,
    "IP_SPACE_EXHAUSTED_WITH_DETAILS": _NO_ADDRESSES,
    # quotas: each region has its own, and spot's are apart from on-demand's
    "QUOTA_EXCEEDED": _QUOTA,
    "quotaExceeded": _QUOTA,
    # too fast: nothing happened
    "rateLimitExceeded": _THROTTLED,
    "userRateLimitExceeded": _THROTTLED,
    "RATE_LIMIT_EXCEEDED": _THROTTLED,
    "HTTP 429": _THROTTLED,
    "resourceNotReady": _BUSY,
    "resourceInUseByAnotherResource": _BUSY,
    "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE": _BUSY,
    "UNREACHABLE": _THROTTLED,
    # Google's own trouble: it may have happened, the same token tells
    PENDING: _PASSING,
    "backendError": _PASSING,
    "internalError": _PASSING,
    "INTERNAL_ERROR": _PASSING,
    "HTTP 500": _PASSING,
    "HTTP 502": _PASSING,
    "HTTP 503": _PASSING,
    "HTTP 504": _PASSING,
    "alreadyExists": _PASSING,
    "RESOURCE_ALREADY_EXISTS": _PASSING,
    # who we are, and what we may do
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
    # where it should stand
    "VPC_NOT_FOUND": _NO_NETWORK,
    "SUBNET_NOT_FOUND_FOR_VPC": _NO_SUBNET,
    # the request itself
    "invalid": _WRONG,
    "badRequest": _WRONG,
    "invalidParameter": _WRONG,
    "conditionNotMet": _WRONG,
    "notFound": _WRONG,
    "INVALID_USAGE": _WRONG,
    "INVALID_FIELD_VALUE": _WRONG,
    "HTTP 400": _WRONG,
    "HTTP 404": _WRONG,
}

# (what is found in the message, row): where one code stands for several things.
MESSAGES: tuple[tuple[str, Row], ...] = (
    (
        "GPUS_ALL_REGIONS",
        Row(
            FaultKind.AVOID_CLOUD,
            Reason.QUOTA,
            any_market=True,
            hint="ask Google for a higher quota of GPUs (all regions), or allow another cloud",
        ),
    ),
    ("is not found or access is unauthorized", _NOT_HERE),
    # The built-in table does not know which zone has what.
    ("Machine type .*does not exist in zone", _NOT_SOLD_HERE),
    ("/(machineTypes|acceleratorTypes)/[^ ]* was not found", _NOT_SOLD_HERE),
    ("network/default' was not found", _NO_NETWORK),
)

# Exceptions of the libraries', by class name: nothing was sent, or no connection came about.
CLIENT_SIDE: dict[str, Row] = {
    "DefaultCredentialsError": _CREDENTIALS,
    "RefreshError": _CREDENTIALS,
    "MalformedError": _CREDENTIALS,
    "ConnectTimeout": _THROTTLED,
    "TransportError": _THROTTLED,  # of the service that gives tokens: the call itself was not made
}

TABLE = Table(CODES, exceptions=CLIENT_SIDE)


def classify(error: Exception) -> Fault:
    code, told = code_of(error), _message(error)
    row = next((row for words, row in MESSAGES if re.search(words, told)), None)
    return faulting.fault(row or TABLE.row(code, error), code, told)


def code_of(error: Exception) -> str:
    """Google's code of an error: the first that `CODES` knows. The class's name where Google has not spoken."""
    if isinstance(error, Refused):
        return error.code
    told = list(_codes(error))
    return next((code for code in told if code in CODES), told[0] if told else type(error).__name__)


def failure_of(errors: Iterable[Mapping[str, Any]]) -> Refused | None:
    """What an operation's errors (`code`, `message`) come to: the cause, rather than the summary."""
    told = [(str(one.get("code") or "?"), str(one.get("message") or "")) for one in errors]
    told.sort(key=lambda one: one[0] == SUMMARY)
    return Refused(told[0][0], told[0][1] or told[0][0]) if told else None


def _codes(error: Exception) -> Iterator[str]:
    if reason := getattr(error, "reason", None):  # of google.rpc.ErrorInfo, which says more where it is there
        yield str(reason)
    for one in getattr(error, "errors", None) or ():
        if isinstance(one, Mapping) and one.get("reason"):
            yield str(one["reason"])
    if isinstance(code := getattr(error, "code", None), int):
        yield f"HTTP {int(code)}"


def _message(error: Exception) -> str:
    return str(getattr(error, "message", None) or error)
