"""`perdure check` of an AWS account."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from perdure.controller.clouds.aws.account_check import principal
from perdure.controller.clouds.aws.cloud import AwsCloud
from perdure.controller.clouds.base import launch_rehearsal
from perdure.controller.clouds.base.account_checks import Finding, Severity
from perdure.recovery.market.view import Market
from support.fakes.ec2 import FakeEc2
from support.fakes.ec2.account import ARN

pytestmark = pytest.mark.long

QUEUES = (("us-east-1", "a"), ("us-west-2", "b"))


def bad(findings: list[Finding] | tuple[Finding, ...]) -> list[Finding]:
    return [one for one in findings if one.severity is not Severity.OK]


def test_account_check__passes_and_launches_nothing(ec2: FakeEc2, cloud: AwsCloud) -> None:
    findings = list(cloud.check())
    assert not bad(findings)
    assert ARN in findings[0].text
    assert [one.subject for one in findings].count("quotas") == 7
    assert not ec2.purchases()


def test_missing_permission__is_named_with_its_purpose(ec2: FakeEc2, cloud: AwsCloud) -> None:
    ec2.faults.forbid = {"ec2:RunInstances", "ssm:GetParameter", "iam:CreateServiceLinkedRole"}
    lacking = {one.text.partition(" ")[0]: one for one in bad(list(cloud.check()))}
    assert lacking.keys() == ec2.faults.forbid
    assert lacking["ec2:RunInstances"].severity is Severity.ERROR
    assert "aws-controller.json" in str(lacking["ec2:RunInstances"].fix)
    assert lacking["iam:CreateServiceLinkedRole"].severity is Severity.WARNING


def test_missing_permission_for_ports__is_a_warning(ec2: FakeEc2, cloud: AwsCloud) -> None:
    """An older policy lacks it, and launches all the same."""
    ec2.faults.forbid = {"ec2:CreateSecurityGroup", "ec2:AuthorizeSecurityGroupIngress"}
    lacking = {one.text.partition(" ")[0]: one for one in bad(list(cloud.check()))}
    assert lacking.keys() == ec2.faults.forbid
    assert {one.severity for one in lacking.values()} == {Severity.WARNING}
    assert all("resources.ports" in one.text for one in lacking.values())


def test_permissions__are_required_only_for_configured_features(
    ec2: FakeEc2, new_cloud: Callable[..., AwsCloud]
) -> None:
    ec2.faults.forbid = {"ssm:GetParameter", "ec2:GetSpotPlacementScores"}
    assert not bad(list(new_cloud(images={"us-east-1": "ami-1"}).check()))
    (scores,) = bad(list(new_cloud(images={"us-east-1": "ami-1"}, placement_scores=True).check()))
    assert scores.text.startswith("ec2:GetSpotPlacementScores")


def test_bucket_permissions__that_are_missing_are_one_warning(ec2: FakeEc2, cloud: AwsCloud) -> None:
    ec2.faults.forbid = {"s3:PutObject", "sts:GetFederationToken"}
    (finding,) = bad(list(cloud.check()))
    assert (finding.subject, finding.severity) == ("buckets", Severity.WARNING)
    assert "s3:PutObject, sts:GetFederationToken is missing" in finding.text
    assert "aws-buckets.json" in str(finding.fix)


def test_rehearsal__tries_each_region_and_market_with_the_real_parameters_and_buys_nothing(
    ec2: FakeEc2, new_cloud: Callable[..., AwsCloud]
) -> None:
    cloud = new_cloud(instance_profile="perdure-node-x")
    offers = launch_rehearsal.sample_offers(cloud.offers())
    assert {(one.region, one.market) for one in offers} == {(r, m) for r in ec2.regions for m in Market}
    assert {one.accelerators is None for one in offers} == {True, False}
    (finding,) = cloud.rehearse()
    assert (finding.severity, finding.subject) == (Severity.OK, "launches")
    assert finding.text == f"{len(offers)} of {len(offers)} rehearsed launches are accepted"
    assert not ec2.purchases()


def test_rehearsal__names_what_is_rejected(ec2: FakeEc2, cloud: AwsCloud) -> None:
    ec2.faults.denied_regions = {"us-west-2"}
    accepted, *rejected = cloud.rehearse()
    assert accepted.severity is Severity.OK
    assert rejected
    assert {one.severity for one in rejected} == {Severity.WARNING}
    assert all(one.text.startswith("us-west-2, ") for one in rejected)
    ec2.faults.denied_regions = set(ec2.regions)
    assert {one.severity for one in cloud.rehearse()} == {Severity.ERROR}


def test_queue_permissions__are_checked_per_queue(ec2: FakeEc2, new_cloud: Callable[..., AwsCloud]) -> None:
    ec2.faults.forbid = {"sqs:DeleteMessage on arn:aws:sqs:us-west-2:123456789012:b"}
    urls = tuple(f"https://sqs.{place}.amazonaws.com/123456789012/{name}" for place, name in QUEUES)
    assert not bad(list(new_cloud(interruption_queues=urls[:1]).check()))
    (delete,) = bad(list(new_cloud(interruption_queues=urls).check()))
    assert (delete.text.partition(" ")[0], delete.severity) == ("sqs:DeleteMessage", Severity.WARNING)


def test_permissions__are_checked_by_dry_runs_without_the_iam_simulator(ec2: FakeEc2, cloud: AwsCloud) -> None:
    ec2.faults.forbid = {"iam:SimulatePrincipalPolicy", "ec2:DescribeSpotPriceHistory"}
    missing, untold = bad(list(cloud.check()))
    assert missing.text.startswith("ec2:DescribeSpotPriceHistory is missing")
    assert untold.severity is Severity.UNKNOWN
    assert "ec2:RunInstances" in untold.text
    assert "iam:SimulatePrincipalPolicy" in str(untold.fix)


def test_quota__that_prevents_launches_names_its_region(ec2: FakeEc2, cloud: AwsCloud) -> None:
    for region in ec2.regions:
        ec2.faults.quotas[region, "L-C4BD4855"] = 0
    ec2.faults.quotas["us-east-1", "L-3819A6DF"] = 0
    findings = list(cloud.check())
    (none,) = bad(findings)
    assert (none.severity, none.subject) == (Severity.WARNING, "quotas")
    assert none.text == "spot vCPUs of P5 types: nothing left in any of 2 regions"
    (some,) = [one for one in findings if one.text.startswith("spot vCPUs of G types")]
    assert some.text.endswith("64 in us-west-2, nothing in 1 more")


def test_region__not_enabled_is_named(new_cloud: Callable[..., AwsCloud]) -> None:
    findings = bad(list(new_cloud(regions=("us-east-1", "xx-nowhere-1")).check()))
    assert ("regions", Severity.WARNING) in {(one.subject, one.severity) for one in findings}
    assert any("xx-nowhere-1 is not enabled" in one.text for one in findings)


def test_invalid_credentials__are_the_only_finding(ec2: FakeEc2, cloud: AwsCloud) -> None:
    ec2.faults.deny = "AuthFailure"
    (only,) = cloud.check()
    assert (only.subject, only.severity) == ("credentials", Severity.ERROR)


def test_assumed_role_session__has_the_permissions_of_its_role() -> None:
    assert principal("arn:aws:sts::1:assumed-role/Trainer/i-0123") == "arn:aws:iam::1:role/Trainer"
    assert principal(ARN) == ARN
