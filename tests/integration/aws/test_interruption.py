"""`interrupt`: a spot interruption that EC2 itself makes, through the Fault Injection Service."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from perdure.controller.clouds.aws.cloud import AwsCloud
from perdure.controller.clouds.aws.machines import simulate_interruption
from perdure.controller.clouds.aws.settings import AwsSettings
from perdure.controller.clouds.base.config_section import SectionError
from perdure.controller.clouds.base.protocol import InstanceState, LaunchRequest
from perdure.recovery.market.view import Market
from perdure.recovery.reasons import Reason
from support.fakes.ec2 import FakeEc2
from support.fakes.ec2.fis import ROLE

pytestmark = pytest.mark.long

REGION = "us-east-1"
New = Callable[..., AwsCloud]
RequestOf = Callable[..., LaunchRequest]


def test_interruption__ends_the_machine_as_ec2_does(ec2: FakeEc2, new_cloud: New, request_of: RequestOf) -> None:
    ec2.faults.fis_notice_s = 0.0
    cloud = new_cloud(fis_role=ROLE)
    taken, spared = cloud.launch(request_of(num_nodes=2))
    cloud.interrupt(REGION, taken.id, notice_s=30.0)
    seen = {one.id: one for one in cloud.describe(REGION, [taken.id, spared.id])}
    assert (seen[taken.id].state, seen[taken.id].gone_reason) == (InstanceState.GONE, Reason.PREEMPTED)
    assert seen[spared.id].state is InstanceState.RUNNING
    assert ec2.fis.templates == 0, "nothing is left in the account"


def test_interruption__without_a_role_calls_nothing(ec2: FakeEc2, cloud: AwsCloud, request_of: RequestOf) -> None:
    (machine,) = cloud.launch(request_of())
    with pytest.raises(Exception, match=r"aws\.fis_role") as caught:
        cloud.interrupt(REGION, machine.id, notice_s=30.0)
    assert "aws.fis_role" in cloud.classify(caught.value).message
    assert not any(call.startswith("fis:") for call in ec2.calls)


def test_interruption__never_takes_on_demand_machines(ec2: FakeEc2, new_cloud: New, request_of: RequestOf) -> None:
    cloud = new_cloud(fis_role=ROLE)
    (machine,) = cloud.launch(request_of(market=Market.ON_DEMAND))
    with pytest.raises(Exception, match="not a running spot instance"):
        cloud.interrupt(REGION, machine.id, notice_s=30.0)
    assert not any(call.startswith("fis:") for call in ec2.calls)


def test_interruption__reports_a_role_that_fis_cannot_assume(
    ec2: FakeEc2, new_cloud: New, request_of: RequestOf
) -> None:
    cloud = new_cloud(fis_role=ROLE + "-of-nobody")
    (machine,) = cloud.launch(request_of())
    with pytest.raises(Exception, match="cannot be assumed"):
        cloud.interrupt(REGION, machine.id, notice_s=30.0)
    assert [one.id for one in ec2.living()] == [machine.id]


@pytest.mark.parametrize(
    ("role", "arn"),
    [
        ("arn:aws:iam::123456789012:role/a/path/fis", "arn:aws:ec2:eu-west-1:123456789012:instance/i-1"),
        ("arn:aws-cn:iam::210987654321:role/fis", "arn:aws-cn:ec2:eu-west-1:210987654321:instance/i-1"),
    ],
)
def test_interruption__uses_the_account_of_the_role(role: str, arn: str) -> None:
    assert simulate_interruption.instance_arn(role, "eu-west-1", "i-1") == arn


@pytest.mark.parametrize("role", ["perdure-fis", "arn:aws:iam::12:role/fis", "arn:aws:iam::123456789012:user/fis"])
def test_interruption__rejects_an_invalid_role(tmp_path: Path, role: str) -> None:
    with pytest.raises(SectionError, match=r"aws\.fis_role: .* is not a role; write one like arn:aws:iam::"):
        AwsSettings.from_mapping({"fis_role": role})
