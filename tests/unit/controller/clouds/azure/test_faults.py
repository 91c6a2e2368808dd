"""Faults of Azure's errors, rule by rule, from responses over HTTP."""

from __future__ import annotations

import json
from http import HTTPStatus
from typing import Any

import pytest
from azure.core.exceptions import (
    ClientAuthenticationError,
    HttpResponseError,
    ServiceRequestError,
    ServiceResponseError,
    ServiceResponseTimeoutError,
)
from azure.identity import CredentialUnavailableError
from azure.mgmt.core.exceptions import ARMErrorFormat

from perdure.controller.clouds.azure.faults import CODES, MESSAGES, classify
from perdure.controller.clouds.base.faults import CloudRejected
from perdure.controller.clouds.base.protocol import Fault
from perdure.controller.reconcile.market_state import concerns_one_job
from perdure.recovery.market.cooldown import unavailable_after_launch
from perdure.recovery.market.unavailable import FaultKind, UnavailableOffer
from perdure.recovery.market.view import Market, Offer
from perdure.recovery.reasons import Reason
from support.fakes.azure.faults import QUOTA, TEXTS

OFFER = Offer("azure", "eastus", "eastus-1", "Standard_NC24ads_A100_v4", Market.SPOT, 1.2, 3.7, 24, 220)

# Try the next zone; the next region; the same again; another cloud; give up.
ZONE, REGION, AGAIN, CLOUD, NEVER = "zone", "region", "again", "cloud", "never"
KINDS = {
    ZONE: {FaultKind.AVOID_ZONE},
    REGION: {FaultKind.AVOID_REGION},
    AGAIN: {FaultKind.RETRY_LATER, FaultKind.AMBIGUOUS},
    CLOUD: {FaultKind.AVOID_CLOUD},
    NEVER: {FaultKind.GIVE_UP},
}
FAMILY = QUOTA.format(what="standardNCADSA100v4Family Cores", region="eastus", limit="{limit}")
DISALLOWED = (
    'Resource \'perdure-t0\' was disallowed by policy. Policy identifiers: \'[{{"policyDefinition":{{"id":'
    '"/providers/Microsoft.Authorization/policyDefinitions/{}"}}}}]\'.'
)
ROWS = [
    ("SkuNotAvailable", "", ZONE),
    ("ZonalAllocationFailed", "", ZONE),
    ("OverconstrainedZonalAllocationRequest", "", ZONE),
    ("SpotPriceGreaterThanProvidedMaxPrice", "", ZONE),
    ("DiskQuotaExceeded", "", REGION),
    ("SpotPercentageExceeded", "", REGION),
    ("NotAvailableForSubscription", "", REGION),
    ("AccountOverdue", "", CLOUD),
    ("ScopeLocked", "", CLOUD),
    ("AllocationFailed", "", REGION),
    ("OverconstrainedAllocationRequest", "", REGION),
    ("OperationNotAllowed", TEXTS["OperationNotAllowed"], REGION),
    ("OperationNotAllowed", FAMILY.format(limit=24), REGION),
    ("OperationNotAllowed", FAMILY.format(limit=0), REGION),
    ("OperationNotAllowed", QUOTA.format(what="Total Regional Cores", region="eastus", limit=10), REGION),
    ("OperationNotAllowed", "Submit a request for Quota increase at …", REGION),
    ("OperationNotAllowed", "The operation is not allowed on this machine.", NEVER),
    ("QuotaExceeded", TEXTS["QuotaExceeded"], REGION),
    ("QuotaExceeded", "", REGION),
    ("PublicIPCountLimitReached", "", REGION),
    ("MaxPriceValueInvalid", "", NEVER),
    ("AzureSpotFeatureNotEnabledForSubscription", "", NEVER),
    ("AzureSpotIsNotSupportedForThisVMSize", "", NEVER),
    ("AzureSpotVMNotSupportedInAvailabilitySet", "", NEVER),
    ("ReadOnlyDisabledSubscription", "", CLOUD),
    ("ClientAuthenticationError", "", CLOUD),
    ("AuthorizationFailed", TEXTS["AuthorizationFailed"], CLOUD),
    ("LinkedAuthorizationFailed", "", CLOUD),
    ("InvalidAuthenticationToken", "", CLOUD),
    ("ExpiredAuthenticationToken", "", CLOUD),
    ("SubscriptionNotFound", "", CLOUD),
    ("MissingSubscriptionRegistration", "", CLOUD),
    ("RequestDisallowedByPolicy", "", NEVER),
    ("RequestDisallowedByPolicy", DISALLOWED.format("e56962a6-4747-49cd-b67b-bf8b01975c4c"), REGION),
    ("RequestDisallowedByAzure", "", REGION),
    ("LocationNotAvailableForResourceType", "", REGION),
    ("ResourceGroupBeingDeleted", "", REGION),
    ("SubnetNotFound", "", REGION),
    ("TooManyRequests", "", AGAIN),
    ("SubscriptionRequestsThrottled", "", AGAIN),
    ("InternalServerError", "", AGAIN),
    ("RetryableError", "", AGAIN),
    ("AnotherOperationInProgress", "", AGAIN),
    ("ReferencedResourceNotProvisioned", "", AGAIN),
    ("InvalidResourceReference", "", AGAIN),
    ("SubnetIsFull", "", REGION),
    ("InvalidParameter", "The value Standard_X is not valid.", NEVER),
    ("InvalidImageReference", "", NEVER),
    ("PlatformImageNotFound", "", NEVER),
    ("MissingApiVersionParameter", "", NEVER),
    ("ResourceNotFound", "", NEVER),
]


class Response:
    """The part of an HTTP response from which the SDK makes an error."""

    def __init__(self, status: int, body: object, headers: dict[str, str] | None = None) -> None:
        self.status_code, self.reason = status, HTTPStatus(status).phrase
        self.headers = headers or {}
        self.content_type = "application/json"
        self._text = body if isinstance(body, str) else json.dumps(body)

    def text(self, *_: object) -> str:
        return self._text

    def body(self) -> bytes:
        return self._text.encode()


def error(code: str, message: str = "no.", status: int = 409, **more: Any) -> HttpResponseError:
    response = Response(status, {"error": {"code": code, "message": message}}, **more)
    return HttpResponseError(response=response, error_format=ARMErrorFormat)


def refusal_of(fault: Fault) -> UnavailableOffer:
    scope = {name: getattr(fault, name) for name in ("whole_region", "whole_cloud", "any_market", "any_instance_type")}
    return unavailable_after_launch(
        OFFER, 0.0, kind=fault.kind, reason=fault.reason, retry_after_s=fault.retry_after_s, **scope
    )


@pytest.mark.parametrize(("code", "message", "where_next"), ROWS)
def test_classify__maps_codes(code: str, message: str, where_next: str) -> None:
    fault = classify(error(code, message))
    assert fault.kind in KINDS[where_next]
    assert fault.code == code
    assert (fault.reason is Reason.NO_CAPACITY) <= (fault.kind is not FaultKind.AVOID_CLOUD)


def test_table__is_covered_by_these_tests() -> None:
    tried = {id(CODES[code]) for code, _, _ in ROWS if code in CODES}
    assert {code for code, row in CODES.items() if id(row) not in tried} <= {"ResourceQuotaExceeded"}
    assert {code for code, _, _ in MESSAGES} <= CODES.keys()


@pytest.mark.parametrize("code", ["SomethingNew", "AllocationIsStrange"])
def test_classify__treats_an_unknown_code_as_ambiguous(code: str) -> None:
    assert classify(error(code)).kind is FaultKind.AMBIGUOUS


def test_classify__spot_quota_covers_all_sizes_of_the_region() -> None:
    refusal = refusal_of(classify(error("OperationNotAllowed", TEXTS["OperationNotAllowed"])))
    assert (refusal.region, refusal.zone, refusal.instance_type, refusal.market) == ("eastus", None, None, Market.SPOT)


def test_classify__family_quota_excludes_one_size_and_an_empty_one_for_long() -> None:
    some, none = (refusal_of(classify(error("OperationNotAllowed", FAMILY.format(limit=n)))) for n in (24, 0))
    assert (some.region, some.zone, some.instance_type) == ("eastus", None, OFFER.instance_type)
    assert (some.until, none.until) == (1800.0, 86400.0)


def test_classify__regional_quota_excludes_the_region() -> None:
    refusal = refusal_of(classify(error("QuotaExceeded", TEXTS["QuotaExceeded"])))
    assert (refusal.region, refusal.instance_type, refusal.market) == ("eastus", None, None)


def test_classify__an_unavailable_size_excludes_one_market_for_an_hour() -> None:
    refusal = refusal_of(classify(error("SkuNotAvailable")))
    assert (refusal.zone, refusal.instance_type, refusal.market) == ("eastus-1", OFFER.instance_type, Market.SPOT)
    assert refusal.until == 3600.0


def test_classify__an_allocation_failure_excludes_both_markets() -> None:
    assert refusal_of(classify(error("ZonalAllocationFailed"))).market is None
    assert refusal_of(classify(error("OverconstrainedZonalAllocationRequest"))).market is Market.SPOT


def test_classify__bad_credentials_exclude_the_cloud_with_a_hint() -> None:
    for code, hint in (("InvalidAuthenticationToken", "az account show"), ("AuthorizationFailed", "deploy/iam")):
        fault = classify(error(code, "no.", 403))
        assert (fault.reason, fault.whole_cloud) == (Reason.BAD_CREDENTIALS, True)
        assert hint in fault.message
        refusal = refusal_of(fault)
        assert (refusal.kind, refusal.region, refusal.market) == (FaultKind.GIVE_UP, None, None)


def test_classify__a_policy_excludes_one_size_in_one_region_for_one_job() -> None:
    """It may deny a size, an image or a missing tag: other jobs go on there."""
    refusal = refusal_of(classify(error("RequestDisallowedByPolicy", DISALLOWED.format("cccc23c7"), 403)))
    assert concerns_one_job(refusal)
    assert (refusal.region, refusal.zone, refusal.instance_type) == ("eastus", None, OFFER.instance_type)


def test_classify__uses_the_retry_after_header() -> None:
    assert classify(error("TooManyRequests", status=429, headers={"Retry-After": "17"})).retry_after_s == 17.0
    assert classify(error("TooManyRequests", status=429)).retry_after_s is None
    assert classify(error("SkuNotAvailable", headers={"Retry-After": "17"})).retry_after_s == 3600.0


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (HttpResponseError(response=Response(429, "slow down")), FaultKind.RETRY_LATER),
        (HttpResponseError(response=Response(502, "<html>")), FaultKind.AMBIGUOUS),
        (HttpResponseError(response=Response(403, "")), FaultKind.AVOID_CLOUD),
        (ClientAuthenticationError("AADSTS7000215: Invalid client secret provided."), FaultKind.AVOID_CLOUD),
        (CredentialUnavailableError("none"), FaultKind.AVOID_CLOUD),
        (ServiceRequestError("no connection"), FaultKind.RETRY_LATER),
        (ServiceResponseError("broken off"), FaultKind.AMBIGUOUS),
        (ServiceResponseTimeoutError("no response"), FaultKind.AMBIGUOUS),
        (ConnectionResetError(), FaultKind.AMBIGUOUS),
        (CloudRejected("InvalidImageReference", "x"), FaultKind.GIVE_UP),
    ],
    ids=lambda value: type(value).__name__,
)
def test_classify__distinguishes_calls_that_never_reached_azure(raised: Exception, kind: FaultKind) -> None:
    assert classify(raised).kind is kind
