"""Launches over HTTP: what EC2 is asked for, and what becomes of it when the world is not kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import boto3
import pytest

from fake_ec2 import FakeEc2
from holdfast.controller.clock import ManualClock
from holdfast.controller.clouds.aws import launching
from holdfast.controller.clouds.aws.cloud import AwsCloud
from holdfast.controller.clouds.aws.launching import Image
from holdfast.controller.clouds.base import Bootstrap, InstanceState, LaunchRequest
from holdfast.controller.clouds.fresh import FRESH_S
from holdfast.recovery.market import FaultKind, Market
from holdfast.recovery.reasons import Reason

Requests = Callable[..., LaunchRequest]


def as_ec2_tells(ec2: FakeEc2, id: str) -> dict[str, Any]:
    client = boto3.client("ec2", region_name="us-east-1", endpoint_url=ec2.url)
    told: dict[str, Any] = dict(client.describe_instances(InstanceIds=[id])["Reservations"][0]["Instances"][0])
    return told


def attribute(ec2: FakeEc2, id: str, name: str) -> Any:
    client = boto3.client("ec2", region_name="us-east-1", endpoint_url=ec2.url)
    return client.describe_instance_attribute(InstanceId=id, Attribute=name)


def disk_of(ec2: FakeEc2, id: str) -> dict[str, Any]:
    volume = as_ec2_tells(ec2, id)["BlockDeviceMappings"][0]["Ebs"]["VolumeId"]
    client = boto3.client("ec2", region_name="us-east-1", endpoint_url=ec2.url)
    return dict(client.describe_volumes(VolumeIds=[volume])["Volumes"][0])


def test_a_machine_is_what_was_asked_for(ec2: FakeEc2, cloud: AwsCloud, request_of: Requests) -> None:
    request = request_of(disk_gib=300, labels={"team": "vision", "holdfast:job": "mine"})
    (machine,) = cloud.launch(request)
    told = as_ec2_tells(ec2, machine.id)
    assert told["InstanceLifecycle"] == "spot"
    assert told["InstanceType"] == "c6a.large"
    assert told["Placement"]["AvailabilityZone"] == "us-east-1a"
    assert told["MetadataOptions"]["HttpTokens"] == "required"
    assert told["MetadataOptions"]["HttpPutResponseHopLimit"] == 2
    tags = {tag["Key"]: tag["Value"] for tag in told["Tags"]}
    assert tags["team"] == "vision"
    assert tags["holdfast:job"] == "7", "nobody's label takes the place of ours"
    behaviour = attribute(ec2, machine.id, "instanceInitiatedShutdownBehavior")
    assert behaviour["InstanceInitiatedShutdownBehavior"]["Value"] == "terminate"
    disk = disk_of(ec2, machine.id)
    assert (disk["Size"], disk["VolumeType"]) == (300, "gp3")


def test_on_demand_is_no_spot(ec2: FakeEc2, cloud: AwsCloud, request_of: Requests) -> None:
    (machine,) = cloud.launch(request_of(market=Market.ON_DEMAND))
    assert "InstanceLifecycle" not in as_ec2_tells(ec2, machine.id)


def test_nodes_come_in_one_call_and_their_ranks_are_their_launch_indices(
    ec2: FakeEc2, cloud: AwsCloud, request_of: Requests
) -> None:
    machines = cloud.launch(request_of(num_nodes=4))
    assert ec2.calls["ec2:RunInstances"] == 1
    assert [one.rank for one in machines] == [0, 1, 2, 3]
    assert {one.id: one.index for one in ec2.bought()} == {one.id: one.rank for one in machines}


def test_an_answer_that_is_lost_buys_nothing_twice(ec2: FakeEc2, cloud: AwsCloud, request_of: Requests) -> None:
    ec2.faults.lost_answers["RunInstances"] = 1
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the SDK's
        cloud.launch(request_of())
    assert cloud.classify(caught.value).kind is FaultKind.FIND_OUT
    (bought,) = ec2.bought()
    assert [one.id for one in cloud.launch(request_of())] == [bought.id]
    assert len(ec2.bought()) == 1


def test_a_request_that_is_lost_buys_nothing(ec2: FakeEc2, cloud: AwsCloud, request_of: Requests) -> None:
    ec2.faults.lost_requests["RunInstances"] = 1
    with pytest.raises(Exception) as caught:  # noqa: PT011
        cloud.launch(request_of())
    assert cloud.classify(caught.value).kind is FaultKind.FIND_OUT
    assert not ec2.bought()
    assert len(cloud.launch(request_of())) == 1


def test_no_call_is_made_twice_by_itself(ec2: FakeEc2, cloud: AwsCloud, request_of: Requests) -> None:
    cloud.launch(request_of())  # by now, it knows the image
    ec2.faults.throttle = 1
    with pytest.raises(Exception, match="RequestLimitExceeded") as caught:
        cloud.launch(request_of("t2"))
    fault = cloud.classify(caught.value)
    assert (fault.kind, fault.reason) == (FaultKind.RETRY_LATER, Reason.THROTTLED)
    assert ec2.calls["ec2:RunInstances"] == 2


def test_the_same_token_with_other_words_finds_what_it_bought(
    ec2: FakeEc2, cloud: AwsCloud, request_of: Requests
) -> None:
    """A daemon that was upgraded in between sends another agent along."""
    first = cloud.launch(request_of(num_nodes=2))
    upgraded = replace(request_of(num_nodes=2), bootstrap=Bootstrap("http://ctl:1", "attempt-token", {"agent": "cd"}))
    again = cloud.launch(upgraded)
    assert {one.id for one in again} == {one.id for one in first}
    assert len(ec2.bought()) == 2


def test_what_was_just_bought_is_not_dead_because_it_is_not_seen_yet(
    ec2: FakeEc2, cloud: AwsCloud, request_of: Requests, clock: ManualClock
) -> None:
    ec2.faults.listing_delay_s = 3600
    (machine,) = cloud.launch(request_of())
    assert not cloud.list_owned("ctl")
    (seen,) = cloud.describe("us-east-1", [machine.id])
    assert (seen.id, seen.state) == (machine.id, machine.state)
    assert not cloud.describe("us-west-2", [machine.id])
    clock.advance(FRESH_S)
    assert not cloud.describe("us-east-1", [machine.id])


def test_one_unknown_id_does_not_save_the_others(ec2: FakeEc2, cloud: AwsCloud, request_of: Requests) -> None:
    machines = cloud.launch(request_of(num_nodes=2))
    cloud.terminate("us-east-1", ["i-00000000000000000", *(one.id for one in machines)])
    assert not ec2.living()


def test_more_ids_than_go_into_one_call(ec2: FakeEc2, cloud: AwsCloud, request_of: Requests) -> None:
    machines = cloud.launch(request_of(num_nodes=3))
    ids = [f"i-{number:017x}" for number in range(250)] + [one.id for one in machines]
    assert len(cloud.describe("us-east-1", ids)) == 3
    cloud.terminate("us-east-1", ids)
    assert not ec2.living()
    assert {one.state for one in cloud.describe("us-east-1", ids)} == {InstanceState.GONE}


def test_an_interruption_is_told_with_its_reason_and_its_second(
    ec2: FakeEc2, cloud: AwsCloud, request_of: Requests
) -> None:
    (machine,) = cloud.launch(request_of())
    ec2.interrupt(machine.id)
    (gone,) = cloud.describe("us-east-1", [machine.id])
    assert (gone.state, gone.gone_reason) == (InstanceState.GONE, Reason.PREEMPTED)
    assert (gone.launched_at, gone.ended_at) == (ec2.bought()[0].launched_at, ec2.bought()[0].ended_at)


def test_a_quota_for_spot_says_nothing_of_on_demand(ec2: FakeEc2, cloud: AwsCloud, request_of: Requests) -> None:
    ec2.faults.refuse["us-east-1a", Market.SPOT] = "MaxSpotInstanceCountExceeded"
    with pytest.raises(Exception, match="Max spot") as caught:
        cloud.launch(request_of())
    assert cloud.classify(caught.value).kind is FaultKind.AVOID_REGION
    assert cloud.launch(request_of("t2", market=Market.ON_DEMAND))


def test_an_image_that_is_none_is_refused_before_anything_is_bought(
    ec2: FakeEc2, cloud: AwsCloud, request_of: Requests
) -> None:
    for image in ("skypilot:gpu-ubuntu-2204", "ami-0000000000000dead"):
        with pytest.raises(Exception) as caught:  # noqa: PT011
            cloud.launch(request_of(image_id=image))
        fault = cloud.classify(caught.value)
        assert fault.kind is FaultKind.GIVE_UP
        assert image in fault.message
    assert not ec2.calls["ec2:RunInstances"]


def test_subnet_and_role_of_the_configuration(
    ec2: FakeEc2, new_cloud: Callable[..., AwsCloud], request_of: Requests
) -> None:
    client = boto3.client("ec2", region_name="us-east-1", endpoint_url=ec2.url)
    (subnet,) = client.describe_subnets(Filters=[{"Name": "availability-zone", "Values": ["us-east-1a"]}])["Subnets"]
    cloud = new_cloud(subnets={"us-east-1a": subnet["SubnetId"]})
    (machine,) = cloud.launch(request_of())
    assert as_ec2_tells(ec2, machine.id)["SubnetId"] == subnet["SubnetId"]


def test_the_best_network_is_an_adapter_where_the_type_takes_one(
    ec2: FakeEc2, new_cloud: Callable[..., AwsCloud], request_of: Requests
) -> None:
    client = boto3.client("ec2", region_name="us-east-1", endpoint_url=ec2.url)
    (vpc,) = client.describe_vpcs()["Vpcs"]
    group = client.create_security_group(GroupName="efa", Description="efa", VpcId=vpc["VpcId"])["GroupId"]
    (subnet,) = client.describe_subnets(Filters=[{"Name": "availability-zone", "Values": ["us-east-1a"]}])["Subnets"]
    cloud = new_cloud(subnets={"us-east-1a": subnet["SubnetId"]}, security_groups={"us-east-1": group})
    image = Image("ami-1", "/dev/sda1", 8)
    where = {"subnet": subnet["SubnetId"], "security_group": group}
    best = request_of(kind="p4d.24xlarge", network_tier="best")
    asked = launching.run_instances(best, image, **where)
    assert asked["NetworkInterfaces"] == [
        {
            "DeviceIndex": 0,
            "NetworkCardIndex": 0,
            "InterfaceType": "efa",
            "DeleteOnTermination": True,
            "SubnetId": subnet["SubnetId"],
            "Groups": [group],
        }
    ]
    assert "SubnetId" not in asked, "EC2 takes it in one place alone"
    for other in (request_of(network_tier="best"), request_of(kind="p4d.24xlarge")):
        asked = launching.run_instances(other, image, **where)
        assert "NetworkInterfaces" not in asked
        assert (asked["SubnetId"], asked["SecurityGroupIds"]) == (subnet["SubnetId"], [group])
    for request in (best, request_of("t2")):
        (machine,) = cloud.launch(request)
        (interface,) = as_ec2_tells(ec2, machine.id)["NetworkInterfaces"]
        assert (interface["SubnetId"], interface["Groups"][0]["GroupId"]) == (subnet["SubnetId"], group)
    assert new_cloud().launch(replace(best, owner=replace(best.owner, token="t3")))
