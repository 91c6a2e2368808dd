"""Faults of EC2's errors, rule by rule."""

from __future__ import annotations

import pytest
from botocore.exceptions import (
    ClientError,
    ConnectTimeoutError,
    EndpointConnectionError,
    NoCredentialsError,
    ParamValidationError,
    ReadTimeoutError,
)

from perdure.controller.clouds.aws.faults import CODES, classify
from perdure.controller.clouds.aws.iam import denial
from perdure.controller.clouds.base.faults import CloudRejected
from perdure.controller.clouds.base.protocol import Fault
from perdure.controller.reconcile.market_state import concerns_one_job
from perdure.recovery.market.cooldown import unavailable_after_launch
from perdure.recovery.market.unavailable import FaultKind, UnavailableOffer
from perdure.recovery.market.view import Market, Offer
from perdure.recovery.reasons import Reason

OFFER = Offer("aws", "us-east-1", "us-east-1a", "g5.xlarge", Market.SPOT, 0.3, 1.0, 4, 16)

# Try the next zone; the next region; the same again; another cloud; give up.
ZONE, REGION, AGAIN, CLOUD, NEVER = "zone", "region", "again", "cloud", "never"
KINDS = {
    ZONE: {FaultKind.AVOID_ZONE},
    REGION: {FaultKind.AVOID_REGION},
    AGAIN: {FaultKind.RETRY_LATER, FaultKind.AMBIGUOUS},
    CLOUD: {FaultKind.AVOID_CLOUD},
    NEVER: {FaultKind.GIVE_UP},
}
ROWS = {
    "InsufficientInstanceCapacity": ZONE,
    "UnfulfillableCapacity": ZONE,
    "InsufficientCapacity": ZONE,
    "InsufficientHostCapacity": ZONE,
    "InsufficientReservedInstanceCapacity": ZONE,
    "ReservationCapacityExceeded": ZONE,
    "Unsupported": ZONE,
    "InsufficientFreeAddressesInSubnet": ZONE,
    "SpotMaxPriceTooLow": ZONE,
    "MaxSpotInstanceCountExceeded": REGION,
    "VcpuLimitExceeded": REGION,
    "InstanceLimitExceeded": REGION,
    "MaxFleetCountExceeded": REGION,
    "VolumeLimitExceeded": REGION,
    "MaxIOPSLimitExceeded": REGION,
    "NetworkInterfaceLimitExceeded": REGION,
    "AddressLimitExceeded": REGION,
    "HostLimitExceeded": REGION,
    "InsufficientVolumeCapacity": ZONE,
    "KMSDisabledException": NEVER,
    "InvalidKMSKey.InvalidState": NEVER,
    "TooManyRequestsException": AGAIN,
    "RequestLimitExceeded": AGAIN,
    "Throttling": AGAIN,
    "ThrottlingException": AGAIN,
    "Throttling.User": AGAIN,
    "InternalError": AGAIN,
    "ServiceUnavailable": AGAIN,
    "Unavailable": AGAIN,
    "InvalidInstanceID.NotFound": AGAIN,
    "InvalidSubnetID.NotFound": AGAIN,
    "InvalidGroup.NotFound": AGAIN,
    "InvalidSecurityGroupID.NotFound": AGAIN,
    "InvalidGroup.Reserved": NEVER,
    "SecurityGroupLimitExceeded": NEVER,
    "RulesPerSecurityGroupLimitExceeded": NEVER,
    "SecurityGroupsPerInterfaceLimitExceeded": NEVER,
    "SecurityGroupsPerInstanceLimitExceeded": NEVER,
    "AuthFailure": CLOUD,
    "UnauthorizedOperation": CLOUD,
    "ExpiredToken": CLOUD,
    "OptInRequired": REGION,
    "IncorrectInstanceState": NEVER,
    "UnsupportedOperation": NEVER,
    "PendingVerification": REGION,
    "InvalidAMIID.NotFound": NEVER,
    "InvalidAMIID.Malformed": NEVER,
    "InvalidParameterValue": NEVER,
    "InvalidParameterCombination": NEVER,
    "InvalidKeyPair.NotFound": NEVER,
    "InvalidSubnet.Conflict": NEVER,
    "AuthFailure.ServiceLinkedRoleCreationNotPermitted": NEVER,
    "VPCIdNotSpecified": ZONE,
}


def error(code: str, message: str = "no.") -> ClientError:
    return ClientError({"Error": {"Code": code, "Message": message}}, "RunInstances")


def refusal_of(fault: Fault) -> UnavailableOffer:
    scope = {name: getattr(fault, name) for name in ("whole_region", "whole_cloud", "any_market", "any_instance_type")}
    return unavailable_after_launch(OFFER, 0.0, kind=fault.kind, reason=fault.reason, **scope)


@pytest.mark.parametrize(("code", "where_next"), ROWS.items())
def test_classify__maps_codes(code: str, where_next: str) -> None:
    fault = classify(error(code))
    assert fault.kind in KINDS[where_next]
    assert fault.code == code


def test_table__is_covered_by_these_tests() -> None:
    rows = {id(CODES[code]) for code in ROWS if code in CODES}
    untested = {code for code, row in CODES.items() if id(row) not in rows}
    assert untested <= {"IdempotentParameterMismatch", "ParameterNotFound"}


def test_classify__a_zone_that_the_account_lacks_is_excluded() -> None:
    fault = classify(error("InvalidParameterValue", "Invalid availability zone: [us-east-1b]"))
    assert (fault.kind, fault.any_instance_type, fault.any_market) == (FaultKind.AVOID_ZONE, True, True)


def denied(action: str, explanation: str = "") -> ClientError:
    text = (
        "You are not authorized to perform this operation. User: arn:aws:sts::1:assumed-role/r/s is not authorized to "
        f"perform: {action} on resource: x with an explicit deny in a service control policy{explanation}"
    )
    return error("UnauthorizedOperation", text)


@pytest.mark.parametrize(
    "refused",
    [
        denied("ssm:GetParameter"),
        denied("ec2:DescribeImages"),
        denied("ec2:RunInstances", f" (statement DenyRegions {denial.DENIES_REGION})"),
    ],
    ids=str,
)
def test_classify__a_region_that_the_organization_denies_is_that_region_alone(refused: ClientError) -> None:
    fault = classify(refused)
    assert (fault.kind, fault.any_instance_type, fault.any_market) == (FaultKind.AVOID_REGION, True, True)
    assert "aws.regions" in fault.message
    refusal = refusal_of(fault)
    assert (refusal.region, refusal.zone) == ("us-east-1", None)


def test_classify__a_denied_launch_excludes_one_type_in_one_region_for_one_job() -> None:
    """The policy may deny the type, an unencrypted disk or a missing tag: other jobs go on there."""
    refusal = refusal_of(classify(denied("ec2:RunInstances", " (statement OnlySmall of p-1)")))
    assert concerns_one_job(refusal)
    assert (refusal.region, refusal.zone, refusal.instance_type) == ("us-east-1", None, "g5.xlarge")
    assert refusal.market is None


@pytest.mark.parametrize(
    ("code", "message", "region"),
    [
        ("OptInRequired", "In order to use this AWS Marketplace product you need to accept terms and subscribe.", None),
        ("KMSDisabledException", "no.", "us-east-1"),
    ],
)
def test_classify__what_an_image_causes_concerns_its_own_job(code: str, message: str, region: str | None) -> None:
    refusal = refusal_of(classify(error(code, message)))
    assert concerns_one_job(refusal)
    assert (refusal.region, refusal.instance_type) == (region, None)


def test_classify__a_limit_of_security_groups_concerns_the_region_and_says_what_to_do() -> None:
    fault = classify(error("RulesPerSecurityGroupLimitExceeded"))
    assert (fault.reason, fault.any_instance_type, fault.any_market) == (Reason.QUOTA, True, True)
    assert "resources.ports" in fault.message
    refusal = refusal_of(fault)
    assert (refusal.region, refusal.zone) == ("us-east-1", None)


@pytest.mark.parametrize("code", ["SomethingNew", "", "InsufficientMoney"])
def test_classify__treats_an_unknown_code_as_ambiguous(code: str) -> None:
    assert classify(error(code)).kind is FaultKind.AMBIGUOUS


def test_classify__a_quota_excludes_one_market_of_the_region() -> None:
    refusal = refusal_of(classify(error("MaxSpotInstanceCountExceeded")))
    assert (refusal.region, refusal.zone) == ("us-east-1", None)
    assert (refusal.market, refusal.instance_type) == (Market.SPOT, "g5.xlarge")


def test_classify__missing_capacity_excludes_one_type_in_one_market() -> None:
    refusal = refusal_of(classify(error("InsufficientInstanceCapacity")))
    assert (refusal.zone, refusal.instance_type, refusal.market) == ("us-east-1a", "g5.xlarge", Market.SPOT)


def test_classify__bad_credentials_exclude_the_cloud_with_a_hint() -> None:
    fault = classify(error("AuthFailure", "AWS was not able to validate the provided access credentials."))
    assert (fault.reason, fault.whole_cloud) == (Reason.BAD_CREDENTIALS, True)
    assert fault.message.startswith("AWS was not able to validate")
    assert "aws sts get-caller-identity" in fault.message
    refusal = refusal_of(fault)
    assert (refusal.kind, refusal.region, refusal.market) == (FaultKind.GIVE_UP, None, None)


@pytest.mark.parametrize(
    ("raised", "kind"),
    [
        (NoCredentialsError(), FaultKind.AVOID_CLOUD),
        (ParamValidationError(report="x"), FaultKind.GIVE_UP),
        (EndpointConnectionError(endpoint_url="http://x"), FaultKind.RETRY_LATER),
        (ConnectTimeoutError(endpoint_url="http://x"), FaultKind.RETRY_LATER),
        (ReadTimeoutError(endpoint_url="http://x"), FaultKind.AMBIGUOUS),
        (ConnectionResetError(), FaultKind.AMBIGUOUS),
        (CloudRejected("InvalidAMIID.Malformed", "x"), FaultKind.GIVE_UP),
    ],
    ids=lambda value: type(value).__name__,
)
def test_classify__distinguishes_calls_that_never_reached_ec2(raised: Exception, kind: FaultKind) -> None:
    assert classify(raised).kind is kind
