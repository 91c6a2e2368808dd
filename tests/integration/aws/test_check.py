"""What `perdure check` finds out of an account."""

from __future__ import annotations

from collections.abc import Callable

from fake_ec2 import FakeEc2
from fake_ec2.account import ARN
from perdure.controller.clouds.aws.checking import principal
from perdure.controller.clouds.aws.cloud import AwsCloud
from perdure.controller.clouds.checks import Finding, Outcome

QUEUES = (("us-east-1", "a"), ("us-west-2", "b"))


def bad(found: list[Finding] | tuple[Finding, ...]) -> list[Finding]:
    return [one for one in found if one.outcome is not Outcome.OK]


def test_an_account_that_allows_all_is_told_so_and_nothing_is_bought(ec2: FakeEc2, cloud: AwsCloud) -> None:
    found = list(cloud.check())
    assert not bad(found)
    assert ARN in found[0].text
    assert [one.about for one in found].count("quotas") == 7
    assert not ec2.bought()


def test_what_the_policy_lacks_is_named_with_what_it_is_for(ec2: FakeEc2, cloud: AwsCloud) -> None:
    ec2.faults.forbid = {"ec2:RunInstances", "ssm:GetParameter", "iam:CreateServiceLinkedRole"}
    lacking = {one.text.partition(" ")[0]: one for one in bad(list(cloud.check()))}
    assert lacking.keys() == ec2.faults.forbid
    assert lacking["ec2:RunInstances"].outcome is Outcome.FAILS
    assert "aws-controller.json" in str(lacking["ec2:RunInstances"].fix)
    assert lacking["iam:CreateServiceLinkedRole"].outcome is Outcome.LIMITS


def test_only_what_the_settings_use_is_wanted(ec2: FakeEc2, new_cloud: Callable[..., AwsCloud]) -> None:
    ec2.faults.forbid = {"ssm:GetParameter", "ec2:GetSpotPlacementScores"}
    assert not bad(list(new_cloud(images={"us-east-1": "ami-1"}).check()))
    (scores,) = bad(list(new_cloud(images={"us-east-1": "ami-1"}, placement_scores=True).check()))
    assert scores.text.startswith("ec2:GetSpotPlacementScores")


def test_queues_are_wanted_by_name(ec2: FakeEc2, new_cloud: Callable[..., AwsCloud]) -> None:
    ec2.faults.forbid = {"sqs:DeleteMessage on arn:aws:sqs:us-west-2:123456789012:b"}
    urls = tuple(f"https://sqs.{place}.amazonaws.com/123456789012/{name}" for place, name in QUEUES)
    assert not bad(list(new_cloud(notice_queues=urls[:1]).check()))
    (delete,) = bad(list(new_cloud(notice_queues=urls).check()))
    assert (delete.text.partition(" ")[0], delete.outcome) == ("sqs:DeleteMessage", Outcome.LIMITS)


def test_without_the_simulator_calls_are_tried_dry(ec2: FakeEc2, cloud: AwsCloud) -> None:
    ec2.faults.forbid = {"iam:SimulatePrincipalPolicy", "ec2:DescribeSpotPriceHistory"}
    missing, untold = bad(list(cloud.check()))
    assert missing.text.startswith("ec2:DescribeSpotPriceHistory is missing")
    assert untold.outcome is Outcome.UNKNOWN
    assert "ec2:RunInstances" in untold.text
    assert "iam:SimulatePrincipalPolicy" in str(untold.fix)


def test_quotas_that_stop_launches_say_where(ec2: FakeEc2, cloud: AwsCloud) -> None:
    for region in ec2.regions:
        ec2.faults.quotas[region, "L-C4BD4855"] = 0
    ec2.faults.quotas["us-east-1", "L-3819A6DF"] = 0
    found = list(cloud.check())
    (none,) = bad(found)
    assert (none.outcome, none.about) == (Outcome.LIMITS, "quotas")
    assert none.text == "spot vCPUs of P5 types: nothing left in any of 2 regions"
    (some,) = [one for one in found if one.text.startswith("spot vCPUs of G types")]
    assert some.text.endswith("64 in us-west-2, nothing in 1 more")


def test_a_region_that_is_not_enabled_is_named(new_cloud: Callable[..., AwsCloud]) -> None:
    found = bad(list(new_cloud(regions=("us-east-1", "xx-nowhere-1")).check()))
    assert ("regions", Outcome.LIMITS) in {(one.about, one.outcome) for one in found}
    assert any("xx-nowhere-1 is not enabled" in one.text for one in found)


def test_bad_credentials_are_all_that_is_told(ec2: FakeEc2, cloud: AwsCloud) -> None:
    ec2.faults.deny = "AuthFailure"
    (only,) = cloud.check()
    assert (only.about, only.outcome) == ("credentials", Outcome.FAILS)


def test_the_policies_of_a_session_are_its_roles() -> None:
    assert principal("arn:aws:sts::1:assumed-role/Trainer/i-0123") == "arn:aws:iam::1:role/Trainer"
    assert principal(ARN) == ARN
