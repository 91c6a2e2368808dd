"""Faults of Compute Engine's errors, rule by rule: of calls and of operations."""

from __future__ import annotations

from http import HTTPStatus

import pytest
import requests
from google.api_core.exceptions import GoogleAPICallError, format_http_response_error
from google.auth.exceptions import DefaultCredentialsError, RefreshError, TransportError

from perdure.controller.clouds.base.faults import CloudRejected
from perdure.controller.clouds.base.protocol import Fault
from perdure.controller.clouds.gcp.faults import CODES, SUMMARY, classify, failure_of
from perdure.controller.reconcile.market_state import concerns_one_job
from perdure.recovery.market.cooldown import unavailable_after_launch
from perdure.recovery.market.unavailable import FaultKind, UnavailableOffer
from perdure.recovery.market.view import Market, Offer
from perdure.recovery.reasons import Reason

OFFER = Offer("gcp", "us-central1", "us-central1-a", "a2-highgpu-1g", Market.SPOT, 1.1, 3.7, 12, 85)

# Try the next zone; the next region; the same again; another cloud; give up.
ZONE, REGION, AGAIN, CLOUD, NEVER = "zone", "region", "again", "cloud", "never"
KINDS = {
    ZONE: {FaultKind.AVOID_ZONE},
    REGION: {FaultKind.AVOID_REGION},
    AGAIN: {FaultKind.RETRY_LATER, FaultKind.AMBIGUOUS},
    CLOUD: {FaultKind.AVOID_CLOUD},
    NEVER: {FaultKind.GIVE_UP},
}
OF_OPERATIONS = {
    "ZONE_RESOURCE_POOL_EXHAUSTED": ZONE,
    "ZONE_RESOURCE_POOL_EXHAUSTED_WITH_DETAILS": ZONE,
    "RESOURCE_POOL_EXHAUSTED": ZONE,
    "REGION_RESOURCE_POOL_EXHAUSTED": REGION,
    "STOCKOUT": ZONE,
    "GPU_STOCKOUT": ZONE,
    "RESOURCE_EXHAUSTED": ZONE,
    "LIMIT_EXCEEDED": REGION,
    "CONDITION_NOT_MET": NEVER,
    SUMMARY: ZONE,
    "UNSUPPORTED_OPERATION": ZONE,
    "RESOURCE_NOT_READY": ZONE,
    "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE": AGAIN,
    "RESOURCE_NOT_FOUND": ZONE,
    "RESOURCE_OPERATION_RATE_EXCEEDED": ZONE,
    "IP_SPACE_EXHAUSTED": ZONE,
    "IP_SPACE_EXHAUSTED_WITH_DETAILS": ZONE,
    "QUOTA_EXCEEDED": REGION,
    "RATE_LIMIT_EXCEEDED": AGAIN,
    "INTERNAL_ERROR": AGAIN,
    "RESOURCE_ALREADY_EXISTS": AGAIN,
    "OPERATION_PENDING": AGAIN,
    "UNREACHABLE": AGAIN,
    "VPC_NOT_FOUND": CLOUD,
    "SUBNET_NOT_FOUND_FOR_VPC": REGION,
    "PERMISSIONS_ERROR": CLOUD,
    "IAM_PERMISSION_DENIED": CLOUD,
    "BILLING_DISABLED": CLOUD,
    "SERVICE_DISABLED": CLOUD,
    "UREQ_PROJECT_BILLING_NOT_FOUND": CLOUD,
    "INVALID_USAGE": NEVER,
    "INVALID_FIELD_VALUE": NEVER,
}
# (HTTP status, reason)
OF_CALLS = {
    (503, "ZONE_RESOURCE_POOL_EXHAUSTED"): ZONE,
    (503, "insufficientCapacity"): ZONE,
    (403, "quotaExceeded"): REGION,
    (403, "rateLimitExceeded"): AGAIN,
    (429, "rateLimitExceeded"): AGAIN,
    (403, "userRateLimitExceeded"): AGAIN,
    (429, "somethingNew"): AGAIN,
    (400, "resourceNotReady"): AGAIN,
    (400, "resourceInUseByAnotherResource"): AGAIN,
    (409, "alreadyExists"): AGAIN,
    (503, "backendError"): AGAIN,
    (500, "internalError"): AGAIN,
    (500, ""): AGAIN,
    (502, ""): AGAIN,
    (503, ""): AGAIN,
    (504, ""): AGAIN,
    (401, "authError"): CLOUD,
    (401, "required"): CLOUD,
    (401, "unauthorized"): CLOUD,
    (403, "forbidden"): CLOUD,
    (403, "insufficientPermissions"): CLOUD,
    (403, ""): CLOUD,
    (403, "accessNotConfigured"): CLOUD,
    (403, "billingNotEnabled"): CLOUD,
    (400, "invalid"): NEVER,
    (400, "required"): NEVER,
    (400, "badRequest"): NEVER,
    (400, "invalidParameter"): NEVER,
    (404, "notFound"): NEVER,
    (412, "conditionNotMet"): NEVER,
}


def answered(status: int, reason: str = "", message: str = "no.", info: str = "") -> GoogleAPICallError:
    """An error as the SDK raises it. `info`: the reason of a google.rpc.ErrorInfo."""
    response = requests.Response()
    response.status_code = status
    response.reason = HTTPStatus(status).phrase
    response.request = requests.Request("POST", "http://x/").prepare()
    errors = [{"message": message, "domain": "global", "reason": reason}] if reason else []
    kind = {"@type": "type.googleapis.com/google.rpc.ErrorInfo", "domain": "googleapis.com"}
    details = [{**kind, "reason": info}] if info else []
    payload = {"error": {"code": status, "message": message, "errors": errors, "details": details}}
    error: GoogleAPICallError = format_http_response_error(response, "POST", "http://x/", payload)
    return error


def refusal_of(fault: Fault) -> UnavailableOffer:
    scope = {name: getattr(fault, name) for name in ("whole_region", "whole_cloud", "any_market", "any_instance_type")}
    return unavailable_after_launch(OFFER, 0.0, kind=fault.kind, reason=fault.reason, **scope)


@pytest.mark.parametrize(("code", "where_next"), OF_OPERATIONS.items())
def test_classify__maps_codes_of_operations(code: str, where_next: str) -> None:
    failure = failure_of([{"code": code, "message": "no."}])
    assert failure is not None
    fault = classify(failure)
    assert fault.kind in KINDS[where_next]
    assert fault.code == code


@pytest.mark.parametrize(("response", "where_next"), OF_CALLS.items(), ids=str)
def test_classify__maps_responses_of_calls(response: tuple[int, str], where_next: str) -> None:
    fault = classify(answered(*response))
    assert fault.kind in KINDS[where_next]
    if where_next != ZONE and where_next != REGION:
        assert fault.reason not in (Reason.QUOTA, Reason.PRICE)


def test_code_of__prefers_the_more_specific_code() -> None:
    fault = classify(answered(403, "forbidden", info="SERVICE_DISABLED"))
    assert fault.code == "SERVICE_DISABLED"
    assert "gcloud services enable" in fault.message
    assert classify(answered(403, "forbidden", info="SOMETHING_NEW")).code == "forbidden"


def test_table__is_covered_by_these_tests() -> None:
    tried = OF_OPERATIONS.keys() | {reason for _, reason in OF_CALLS} | {f"HTTP {status}" for status, _ in OF_CALLS}
    assert CODES.keys() <= tried


@pytest.mark.parametrize("code", ["SOMETHING_NEW", ""])
def test_classify__treats_an_unknown_code_as_ambiguous(code: str) -> None:
    failure = failure_of([{"code": code, "message": "?"}])
    assert failure is not None
    assert classify(failure).kind is FaultKind.AMBIGUOUS
    assert classify(answered(409, code)).kind is FaultKind.AMBIGUOUS


def test_failure_of__prefers_the_cause_over_the_summary() -> None:
    errors = [{"code": SUMMARY, "message": "4 VMs could not be created"}, {"code": "QUOTA_EXCEEDED", "message": "CPUS"}]
    failure = failure_of(errors)
    assert failure is not None
    assert (failure.code, str(failure)) == ("QUOTA_EXCEEDED", "CPUS")
    assert failure_of([]) is None


@pytest.mark.parametrize(
    "wrong", [answered(401, "authError"), answered(403, "forbidden"), RefreshError("gone")], ids=repr
)
def test_classify__bad_credentials_exclude_the_cloud_with_a_hint(wrong: Exception) -> None:
    fault = classify(wrong)
    assert (fault.kind, fault.reason, fault.whole_cloud) == (FaultKind.AVOID_CLOUD, Reason.BAD_CREDENTIALS, True)
    assert "gcloud" in fault.message or "deploy/iam" in fault.message
    refusal = refusal_of(fault)
    assert (refusal.kind, refusal.region, refusal.market) == (FaultKind.GIVE_UP, None, None)


def test_classify__missing_capacity_excludes_one_type_in_one_market() -> None:
    refusal = refusal_of(classify(CloudRejected("ZONE_RESOURCE_POOL_EXHAUSTED", "full")))
    assert (refusal.zone, refusal.instance_type, refusal.market) == ("us-central1-a", "a2-highgpu-1g", Market.SPOT)


def test_classify__quotas_exclude_the_region_or_the_cloud() -> None:
    message = "Quota '{}' exceeded.  Limit: 0.0 in region us-central1."
    regional = classify(CloudRejected("QUOTA_EXCEEDED", message.format("PREEMPTIBLE_NVIDIA_A100_GPUS")))
    assert (regional.kind, regional.whole_cloud) == (FaultKind.AVOID_REGION, False)
    refusal = refusal_of(regional)
    assert (refusal.region, refusal.zone, refusal.market) == ("us-central1", None, Market.SPOT)
    for refused in (
        CloudRejected("QUOTA_EXCEEDED", message.format("GPUS_ALL_REGIONS")),
        answered(403, "quotaExceeded", "GPUS_ALL_REGIONS"),
    ):
        everywhere = classify(refused)
        assert (everywhere.kind, everywhere.reason) == (FaultKind.AVOID_CLOUD, Reason.QUOTA)


@pytest.mark.parametrize(
    ("constraint", "instance_type"),
    [("compute.trustedImageProjects", None), ("custom.onlySmall", OFFER.instance_type)],
)
def test_classify__a_policy_that_a_task_violates_excludes_the_cloud_for_that_job_alone(
    constraint: str, instance_type: str | None
) -> None:
    """Its own image, or its type: jobs of other users go on."""
    text = f"Constraint constraints/{constraint} violated for project p. Use of the image is prohibited."
    for refused in (answered(412, "conditionNotMet", text), CloudRejected("CONDITION_NOT_MET", text)):
        refusal = refusal_of(classify(refused))
        assert concerns_one_job(refusal)
        assert (refusal.region, refusal.instance_type, refusal.market) == (None, instance_type, None)


@pytest.mark.parametrize(
    ("constraint", "region"), [("compute.vmExternalIpAccess", None), ("gcp.resourceLocations", "us-central1")]
)
def test_classify__a_policy_on_addresses_or_places_concerns_all_jobs(constraint: str, region: str | None) -> None:
    refusal = refusal_of(
        classify(answered(412, "conditionNotMet", f"Constraint constraints/{constraint} violated for project p."))
    )
    assert not concerns_one_job(refusal)
    assert (refusal.region, refusal.instance_type) == (region, None)


def test_classify__an_image_that_nobody_may_use_excludes_no_zone() -> None:
    text = "The resource 'projects/x/global/images/y' is not found or access is unauthorized."
    assert concerns_one_job(refusal_of(classify(answered(404, "notFound", text))))


def test_classify__a_forbidden_zone_is_excluded_for_long() -> None:
    fault = classify(answered(403, "forbidden", "Location us-x1-a is not found or access is unauthorized."))
    assert fault.kind is FaultKind.AVOID_ZONE
    assert fault.any_instance_type
    assert fault.retry_after_s is not None
    assert fault.retry_after_s > 3600


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (DefaultCredentialsError("none"), FaultKind.AVOID_CLOUD),
        (TransportError("no way to the tokens"), FaultKind.RETRY_LATER),
        (requests.exceptions.ConnectTimeout(), FaultKind.RETRY_LATER),
        (requests.exceptions.ReadTimeout(), FaultKind.AMBIGUOUS),
        (requests.exceptions.ConnectionError(), FaultKind.AMBIGUOUS),
        (ConnectionResetError(), FaultKind.AMBIGUOUS),
        (CloudRejected("invalid", "x"), FaultKind.GIVE_UP),
    ],
    ids=lambda value: type(value).__name__,
)
def test_classify__distinguishes_calls_that_never_reached_google(raised: Exception, kind: FaultKind) -> None:
    assert classify(raised).kind is kind


@pytest.mark.parametrize(
    "refused",
    [
        answered(
            400,
            "invalid",
            message="Invalid value for field 'resource.instanceProperties.machineType': 'a2-highgpu-1g'. Machine type "
            "with name 'a2-highgpu-1g' does not exist in zone 'us-central1-a'.",
        ),
        answered(
            404,
            "notFound",
            message="The resource 'projects/p/zones/us-central1-a/acceleratorTypes/nvidia-tesla-v100' was not found",
        ),
        answered(
            404,
            "notFound",
            message="The resource 'projects/p/zones/us-central1-a/machineTypes/a2-highgpu-1g' was not found",
        ),
    ],
    ids=str,
)
def test_classify__a_type_that_a_zone_lacks_excludes_only_that_type(refused: Exception) -> None:
    """The built-in table offers it until the first fetch."""
    refusal = refusal_of(classify(refused))
    assert (refusal.zone, refusal.instance_type, refusal.market) == ("us-central1-a", "a2-highgpu-1g", None)


def test_classify__a_missing_image_is_a_bad_request() -> None:
    message = "The resource 'projects/p/global/images/mine' was not found"
    assert classify(answered(404, "notFound", message=message)).kind is FaultKind.GIVE_UP
