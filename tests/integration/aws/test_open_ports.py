"""Ports of clusters on EC2: a security group with exactly these, beside the usual one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError

from perdure.controller.clouds.aws.cloud import AwsCloud
from perdure.controller.clouds.base.faults import CloudRejected
from perdure.controller.clouds.base.protocol import EventuallyConsistent, LaunchRequest, OpenPorts
from perdure.recovery.market.unavailable import FaultKind
from support.fakes.ec2 import FakeEc2
from support.fakes.ec2.server import KEY_ID, SECRET

REGION = "us-east-1"
POLICY = Path(__file__).parents[3] / "deploy" / "iam" / "aws-controller.json"
NAME = "perdure-abcdef01-cluster-7"


def client(ec2: FakeEc2) -> Any:
    keys = {"aws_access_key_id": KEY_ID, "aws_secret_access_key": SECRET}
    return boto3.client("ec2", region_name=REGION, endpoint_url=ec2.url, **keys)


def open_ports(ec2: FakeEc2) -> dict[str, set[tuple[int, int]]]:
    """The groups that clusters have made, and the ports that each lets anybody connect to."""
    groups = client(ec2).describe_security_groups()["SecurityGroups"]
    return {
        group["GroupName"]: {(rule["FromPort"], rule["ToPort"]) for rule in group["IpPermissions"]}
        for group in groups
        if group["GroupName"].startswith("perdure-")
    }


Launch = Callable[..., Any]


@pytest.fixture
def launch(cloud: AwsCloud, request_of: Callable[..., LaunchRequest]) -> Launch:
    def launch(token: str, *ranges: tuple[int, int]) -> Any:
        return cloud.launch(request_of(token, open_ports=OpenPorts(NAME, ranges) if ranges else None))

    return launch


def test_launch__opens_exactly_the_ports_that_are_asked_for(cloud: AwsCloud, ec2: FakeEc2, launch: Launch) -> None:
    (machine,) = launch("t1", (8080, 8080), (9000, 9010))
    assert open_ports(ec2) == {NAME: {(8080, 8080), (9000, 9010)}}
    described = client(ec2).describe_instances(InstanceIds=[machine.id])["Reservations"][0]["Instances"][0]
    assert sorted(group["GroupName"] for group in described["SecurityGroups"]) == ["default", NAME]
    assert cloud.public_addresses(REGION, [machine.id]) == {machine.id: described["PublicIpAddress"]}


def test_launch__for_other_ports_changes_the_group(cloud: AwsCloud, ec2: FakeEc2, launch: Launch) -> None:
    launch("t1", (8080, 8080), (9000, 9010))
    launch("t2", (8080, 8080), (22, 22))
    assert open_ports(ec2) == {NAME: {(8080, 8080), (22, 22)}}


def test_launch__without_ports_opens_none(cloud: AwsCloud, ec2: FakeEc2, launch: Launch) -> None:
    launch("t1")
    assert open_ports(ec2) == {}


def test_close__waits_for_the_machines_and_is_repeatable(cloud: AwsCloud, ec2: FakeEc2, launch: Launch) -> None:
    (machine,) = launch("t1", (8080, 8080))
    with pytest.raises(EventuallyConsistent):
        cloud.close_ports(REGION, NAME)
    cloud.terminate(REGION, [machine.id])
    for _ in range(2):
        cloud.close_ports(REGION, NAME)
    assert open_ports(ec2) == {}


def test_policy__allows_changes_of_the_groups_of_clusters_alone(cloud: AwsCloud, ec2: FakeEc2, launch: Launch) -> None:
    boto = client(ec2)
    others = [boto.create_security_group(GroupName="database", Description="of the user")["GroupId"]]
    others += [one["GroupId"] for one in boto.describe_security_groups(GroupNames=["default"])["SecurityGroups"]]
    ec2.faults.policy = json.loads(POLICY.read_text())["Statement"]
    (first,), (second,) = launch("t1", (8080, 8080)), launch("t2", (9090, 9090))
    assert open_ports(ec2) == {NAME: {(9090, 9090)}}
    rule = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}
    tag = {"Key": "perdure:controller", "Value": "ctl"}
    for id in others:
        for change in (
            lambda id=id: boto.authorize_security_group_ingress(GroupId=id, IpPermissions=[rule]),
            lambda id=id: boto.revoke_security_group_ingress(GroupId=id, IpPermissions=[rule]),
            lambda id=id: boto.delete_security_group(GroupId=id),
            lambda id=id: boto.create_tags(Resources=[id], Tags=[tag]),
        ):
            with pytest.raises(ClientError, match="UnauthorizedOperation"):
                change()
    cloud.terminate(REGION, [first.id, second.id])
    cloud.close_ports(REGION, NAME)
    assert open_ports(ec2) == {}


@pytest.mark.parametrize("action", ["AuthorizeSecurityGroupIngress", "RunInstances"])
def test_launch__with_a_group_that_is_not_visible_yet_is_tried_again(
    cloud: AwsCloud, ec2: FakeEc2, launch: Launch, action: str
) -> None:
    ec2.faults.unseen_groups[action] = 1
    with pytest.raises(ClientError) as caught:
        launch("t1", (8080, 8080))
    assert cloud.classify(caught.value).kind is FaultKind.RETRY_LATER
    assert launch("t2", (8080, 8080))
    assert open_ports(ec2) == {NAME: {(8080, 8080)}}


def test_launch__with_a_configured_group_that_does_not_exist_gives_up(
    ec2: FakeEc2, new_cloud: Callable[..., AwsCloud], request_of: Callable[..., LaunchRequest]
) -> None:
    ec2.faults.unseen_groups["RunInstances"] = 1
    cloud = new_cloud(security_groups={REGION: "sg-0123"})
    with pytest.raises(CloudRejected, match=r"aws.security_groups: sg-0123 does not exist") as caught:
        cloud.launch(request_of("t1"))
    assert cloud.classify(caught.value).kind is FaultKind.GIVE_UP
