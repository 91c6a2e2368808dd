"""The meaning of an API server's errors, and of the ways in which none answers.

A region is a context, so faults of a cluster concern the whole region: its other offers are as unusable.
"""

from __future__ import annotations

from dataclasses import replace

from perdure.controller.clouds.base import faults
from perdure.controller.clouds.base.config_section import SectionError
from perdure.controller.clouds.base.faults import UNREACHABLE, CloudRejected, FaultRule, FaultTable
from perdure.controller.clouds.base.partial_listing import PartialListing
from perdure.controller.clouds.base.protocol import Fault
from perdure.controller.clouds.kubernetes.api.credentials import CredentialsError
from perdure.controller.clouds.kubernetes.api.errors import ApiError, ConnectionBroken, NotConnected
from perdure.recovery.market.unavailable import FaultKind
from perdure.recovery.reasons import Reason

NO_ROOM = "InsufficientCapacity"
NO_NODES = "NoMatchingNodes"
UNSUPPORTED = "UnknownInstanceType"

_RIGHTS = "grant what deploy/kubernetes/rbac.yaml lists; `perdure check kubernetes` names what is missing"
_CREDENTIALS = FaultRule(
    FaultKind.AVOID_REGION,
    Reason.BAD_CREDENTIALS,
    any_market=True,
    any_type=True,
    hint="give the controller credentials for the context (`kubectl --context … get pods` must succeed where it runs)",
)
_THROTTLED = FaultRule(FaultKind.RETRY_LATER, Reason.THROTTLED, any_market=True, any_type=True, whole_region=True)
_WRONG = FaultRule(FaultKind.GIVE_UP, Reason.BAD_REQUEST, any_market=True)
_AMBIGUOUS = FaultRule(FaultKind.AMBIGUOUS, Reason.NO_CAPACITY)
_QUOTA = FaultRule(
    FaultKind.AVOID_REGION,
    Reason.QUOTA,
    any_market=True,
    any_type=True,
    hint="raise the namespace's ResourceQuota, or end other pods",
)
# A policy (an admission webhook, a limit range) objects to the pod's image, size or pod_config. The pods of other tasks
# may still be admitted.
_FORBIDDEN = FaultRule(FaultKind.GIVE_UP, Reason.BAD_REQUEST, any_market=True, whole_region=True)
_ENDING_NAMESPACE = FaultRule(FaultKind.AVOID_REGION, Reason.BAD_REQUEST, 600.0, any_market=True, any_type=True)
# Not for long: an API server that has just started knows no roles yet, and forbids everything.
_NO_RIGHTS = FaultRule(
    FaultKind.AVOID_REGION, Reason.BAD_CREDENTIALS, 60.0, any_market=True, any_type=True, hint=_RIGHTS
)
_CONFIG = FaultRule(
    FaultKind.AVOID_REGION,
    Reason.BAD_CREDENTIALS,
    any_market=True,
    any_type=True,
    hint="correct the kubeconfig, or kubernetes.allowed_contexts",
)

TABLE = FaultTable(
    codes={
        NO_ROOM: FaultRule(FaultKind.AVOID_ZONE, Reason.NO_CAPACITY),
        NO_NODES: FaultRule(FaultKind.AVOID_ZONE, Reason.NO_CAPACITY, 300.0),
        UNSUPPORTED: _WRONG,
        "NoSuchPod": _WRONG,
        "InvalidPodConfig": _WRONG,
        "NoSuchContext": _CONFIG,
        "InvalidKubeconfig": _CONFIG,
        "CredentialsError": _CREDENTIALS,
        "Unauthorized": _CREDENTIALS,
        "NotConnected": _THROTTLED,
        "TooManyRequests": _THROTTLED,
        "Invalid": _WRONG,
        "BadRequest": _WRONG,
        "RequestEntityTooLarge": _WRONG,
        "NotFound": FaultRule(
            FaultKind.AVOID_REGION,
            Reason.BAD_REQUEST,
            600.0,
            any_market=True,
            any_type=True,
            hint="see that the namespace exists: kubernetes.namespace",
        ),
        "AlreadyExists": _AMBIGUOUS,
        "Conflict": _AMBIGUOUS,
    }
)
_SERVER_ERRORS = 500


def classify(error: Exception) -> Fault:
    """As `Cloud.classify`."""
    if isinstance(error, PartialListing):
        return replace(classify(next(iter(error.failures.values()))), message=str(error))
    if isinstance(error, ApiError):
        rule = _rule_of(error)
        fault = faults.to_fault(rule, error.reason, error.message)
        return _with_pause(fault, error.retry_after_s)
    if isinstance(error, CloudRejected):
        return faults.to_fault(TABLE.rule(error.code, error), error.code, str(error))
    if isinstance(error, SectionError):
        return faults.to_fault(_WRONG, "InvalidPodConfig", str(error))
    if isinstance(error, CredentialsError):
        return faults.to_fault(_CREDENTIALS, "CredentialsError", str(error))
    if isinstance(error, NotConnected):
        return faults.to_fault(_THROTTLED, "NotConnected", f"{UNREACHABLE} {error}")
    code = "ConnectionBroken" if isinstance(error, ConnectionBroken) else type(error).__name__
    return faults.to_fault(None, code, str(error))


def is_quota(error: ApiError) -> bool:
    return error.status == 403 and "exceeded quota" in error.message


def violates_restricted(error: ApiError) -> bool:
    """Whether the namespace admits only pods of the Pod Security Standard `restricted`.

    Or only those of a pod security policy, as clusters before 1.25 have them: what it objects to is not stated in a
    fixed form, and the pods of `restricted` are those that most policies admit.
    """
    texts = ('violates PodSecurity "restricted', "PodSecurityPolicy: unable to", "pod security policy")
    return error.status == 403 and any(text in error.message for text in texts)


def violates_pod_security(error: ApiError) -> bool:
    """Whether the namespace's Pod Security Standard forbids a part of the pod."""
    return error.status == 403 and "violates PodSecurity" in error.message


def _rule_of(error: ApiError) -> FaultRule | None:
    if error.status == 403:
        if is_quota(error):
            return _QUOTA
        if "because it is being terminated" in error.message:
            return _ENDING_NAMESPACE
        # The server names the user and the verb if a right is missing, and what a policy objects to otherwise.
        return _NO_RIGHTS if " cannot " in error.message else _FORBIDDEN
    if error.status == 429:
        return _THROTTLED
    if error.status >= _SERVER_ERRORS:
        return _AMBIGUOUS  # it may have taken effect: repeated with the same names
    return TABLE.rule(error.reason, error) or _WRONG


def _with_pause(fault: Fault, retry_after_s: float | None) -> Fault:
    return replace(fault, retry_after_s=retry_after_s) if retry_after_s else fault
