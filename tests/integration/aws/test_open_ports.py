"""Ports of clusters on EC2: a security group with exactly these, beside the usual one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import boto3
import pytest

from perdure.controller.clouds.aws.cloud import AwsCloud
from perdure.controller.clouds.base.protocol import EventuallyConsistent, LaunchRequest, OpenPorts
from support.fakes.ec2 import FakeEc2
from support.fakes.ec2.server import KEY_ID, SECRET

REGION = "us-east-1"
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
