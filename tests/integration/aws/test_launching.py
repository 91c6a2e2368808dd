"""Launches over HTTP: what EC2 is asked for, and what becomes of it when the world is not kind."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import boto3
import pytest

from fake_ec2 import FakeEc2
from perdure.controller.clock import ManualClock
from perdure.controller.clouds.aws import launching
from perdure.controller.clouds.aws.cloud import AwsCloud
from perdure.controller.clouds.aws.fabric import Fabric, interfaces
from perdure.controller.clouds.aws.launching import Image
from perdure.controller.clouds.base import Bootstrap, InstanceState, LaunchRequest
from perdure.controller.clouds.fresh import FRESH_S
from perdure.recovery.market import FaultKind, Market
from perdure.recovery.reasons import Reason

Requests = Callable[..., LaunchRequest]


def as_ec2_tells(ec2: FakeEc2, id: str) -> dict[str, Any]:
    client = boto3.client("ec2", region_name="us-east-1", endpoint_url=ec2.url)
    told: dict[str, Any] = dict(client.describe_instances(InstanceIds=[id])["Reservations"][0]["Instances"][0])
    return told


def clients(ec2: FakeEc2) -> Callable[[str], Any]:
    return lambda region: boto3.client("ec2", region_name=region, endpoint_url=ec2.url)


def attribute(ec2: FakeEc2, id: str, name: str) -> Any:
    client = boto3.client("ec2", region_name="us-east-1", endpoint_url=ec2.url)
    return client.describe_instance_attribute(InstanceId=id, Attribute=name)


def disk_of(ec2: FakeEc2, id: str) -> dict[str, Any]:
    volume = as_ec2_tells(ec2, id)["BlockDeviceMappings"][0]["Ebs"]["VolumeId"]
    client = boto3.client("ec2", region_name="us-east-1", endpoint_url=ec2.url)
    return dict(client.describe_volumes(VolumeIds=[volume])["Volumes"][0])


def test_a_machine_is_what_was_asked_for(ec2: FakeEc2, cloud: AwsCloud, request_of: Requests) -> None:
    request = request_of(disk_gib=300, labels={"team": "vision", "perdure:job": "mine"})
    (machine,) = cloud.launch(request)
    told = as_ec2_tells(ec2, machine.id)
    assert told["InstanceLifecycle"] == "spot"
    assert told["InstanceType"] == "c6a.large"
    assert told["Placement"]["AvailabilityZone"] == "us-east-1a"
    assert told["MetadataOptions"]["HttpTokens"] == "required"
    assert told["MetadataOptions"]["HttpPutResponseHopLimit"] == 2
    tags = {tag["Key"]: tag["Value"] for tag in told["Tags"]}
    assert tags["team"] == "vision"
    assert tags["perdure:job"] == "7", "nobody's label takes the place of ours"
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


@pytest.fixture
def place(ec2: FakeEc2) -> dict[str, str]:
    """A private subnet of us-east-1a and a security group."""
    client = boto3.client("ec2", region_name="us-east-1", endpoint_url=ec2.url)
    (vpc,) = client.describe_vpcs()["Vpcs"]
    group = client.create_security_group(GroupName="efa", Description="efa", VpcId=vpc["VpcId"])["GroupId"]
    (subnet,) = client.describe_subnets(Filters=[{"Name": "availability-zone", "Values": ["us-east-1a"]}])["Subnets"]
    client.modify_subnet_attribute(SubnetId=subnet["SubnetId"], MapPublicIpOnLaunch={"Value": False})
    return {"subnet": subnet["SubnetId"], "security_group": group}


@pytest.mark.parametrize(
    ("kind", "adapters"),
    [("p4d.24xlarge", 4), ("p5.48xlarge", 32), ("trn1.32xlarge", 8), ("g5.8xlarge", 1), ("c6a.large", 0)],
)
def test_the_best_network_is_an_adapter_on_each_card_that_takes_one(
    ec2: FakeEc2, place: dict[str, str], request_of: Requests, kind: str, adapters: int
) -> None:
    cards = Fabric(clients(ec2)).cards("us-east-1", kind, place["subnet"])
    assert cards == tuple(range(adapters))
    asked = launching.run_instances(request_of(kind=kind), Image("ami-1", "/dev/sda1", 8), adapters=cards, **place)
    found = asked.pop("NetworkInterfaces", [])
    places = [(one["NetworkCardIndex"], one["DeviceIndex"]) for one in found]
    assert len(set(places)) == len(places)
    assert sum(one["InterfaceType"].startswith("efa") for one in found) == adapters
    if not adapters:
        assert (asked["SubnetId"], asked["SecurityGroupIds"]) == (place["subnet"], [place["security_group"]])
        return
    assert not {"SubnetId", "SecurityGroupIds"} & asked.keys(), "EC2 takes them in one place alone"
    assert {(one["SubnetId"], *one["Groups"]) for one in found} == {tuple(place.values())}
    assert (places[0], found[0]["InterfaceType"]) == ((0, 0), "efa" if adapters == 1 else "interface")


def test_a_card_may_carry_ip_alone(ec2: FakeEc2, place: dict[str, str]) -> None:
    """As its first does of 17."""
    fabric = Fabric(clients(ec2))
    cards = fabric.cards("us-east-1", "p6-b300.48xlarge", place["subnet"])
    assert cards == tuple(range(1, 17))
    first, *others = interfaces(cards, subnet=None, security_group=None)
    assert (first["NetworkCardIndex"], first["DeviceIndex"], first["InterfaceType"]) == (0, 0, "interface")
    assert {(one["DeviceIndex"], one["InterfaceType"]) for one in others} == {(0, "efa-only")}
    assert fabric.cards("us-east-1", "p6-b300.48xlarge", None) == ()


def test_machines_that_need_a_public_address_have_one_interface(ec2: FakeEc2, place: dict[str, str]) -> None:
    fabric = Fabric(clients(ec2))
    assert fabric.cards("us-east-1", "p4d.24xlarge", None) == (0,)
    assert len(fabric.cards("us-east-1", "p4d.24xlarge", place["subnet"])) == 4
    client = boto3.client("ec2", region_name="us-east-1", endpoint_url=ec2.url)
    client.modify_subnet_attribute(SubnetId=place["subnet"], MapPublicIpOnLaunch={"Value": True})
    assert fabric.cards("us-east-1", "p4d.24xlarge", place["subnet"]) == (0,)
    assert ec2.calls["ec2:DescribeInstanceTypes"] == 1


def test_only_the_best_network_has_adapters(
    ec2: FakeEc2, new_cloud: Callable[..., AwsCloud], request_of: Requests, place: dict[str, str]
) -> None:
    """Of four adapters and an interface moto keeps two: it tells them apart by DeviceIndex alone."""
    where = {"subnets": {"us-east-1a": place["subnet"]}, "security_groups": {"us-east-1": place["security_group"]}}
    cloud = new_cloud(**where)
    best = request_of(kind="p4d.24xlarge", network_tier="best")
    for request in (best, request_of("t2", kind="p4d.24xlarge")):
        (machine,) = cloud.launch(request)
        interface, *others = as_ec2_tells(ec2, machine.id)["NetworkInterfaces"]
        assert bool(others) == (request is best)
        assert (interface["SubnetId"], interface["Groups"][0]["GroupId"]) == tuple(place.values())
    assert ec2.calls["ec2:DescribeInstanceTypes"] == 1
    assert new_cloud().launch(replace(best, owner=replace(best.owner, token="t3")))
