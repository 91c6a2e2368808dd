"""Launches over HTTP: the requests to EC2, and its failures."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import boto3
import pytest

from perdure.controller.clouds.aws.cloud import AwsCloud
from perdure.controller.clouds.aws.machines import launch_request
from perdure.controller.clouds.aws.machines.fabric import Fabric, interfaces
from perdure.controller.clouds.aws.machines.launch_request import Image
from perdure.controller.clouds.base.protocol import Bootstrap, InstanceState, LaunchRequest
from perdure.controller.clouds.base.recent_launches import RECENT_S
from perdure.controller.runtime.clock import ManualClock
from perdure.recovery.market.unavailable import FaultKind
from perdure.recovery.market.view import Market
from perdure.recovery.reasons import Reason
from support.fakes.ec2 import FakeEc2

pytestmark = pytest.mark.long

Requests = Callable[..., LaunchRequest]


def as_ec2_tells(ec2: FakeEc2, id: str) -> dict[str, Any]:
    client = boto3.client("ec2", region_name="us-east-1", endpoint_url=ec2.url)
    reported: dict[str, Any] = dict(client.describe_instances(InstanceIds=[id])["Reservations"][0]["Instances"][0])
    return reported


def clients(ec2: FakeEc2) -> Callable[[str], Any]:
    return lambda region: boto3.client("ec2", region_name=region, endpoint_url=ec2.url)


def attribute(ec2: FakeEc2, id: str, name: str) -> dict[str, Any]:
    client = boto3.client("ec2", region_name="us-east-1", endpoint_url=ec2.url)
    return dict(client.describe_instance_attribute(InstanceId=id, Attribute=name))


def disk_of(ec2: FakeEc2, id: str) -> dict[str, Any]:
    volume = as_ec2_tells(ec2, id)["BlockDeviceMappings"][0]["Ebs"]["VolumeId"]
    client = boto3.client("ec2", region_name="us-east-1", endpoint_url=ec2.url)
    return dict(client.describe_volumes(VolumeIds=[volume])["Volumes"][0])


def test_launch__requests_the_machine_of_the_offer(ec2: FakeEc2, cloud: AwsCloud, request_of: Requests) -> None:
    request = request_of(disk_gib=300, labels={"team": "vision", "perdure:job": "mine"})
    (machine,) = cloud.launch(request)
    reported = as_ec2_tells(ec2, machine.id)
    assert reported["InstanceLifecycle"] == "spot"
    assert reported["InstanceType"] == "c6a.large"
    assert reported["Placement"]["AvailabilityZone"] == "us-east-1a"
    assert reported["MetadataOptions"]["HttpTokens"] == "required"
    assert reported["MetadataOptions"]["HttpPutResponseHopLimit"] == 1, "containers get no user data"
    assert disk_of(ec2, machine.id)["Encrypted"]
    tags = {tag["Key"]: tag["Value"] for tag in reported["Tags"]}
    assert tags["team"] == "vision"
    assert tags["perdure:job"] == "7", "a user's label does not replace ours"
    behaviour = attribute(ec2, machine.id, "instanceInitiatedShutdownBehavior")
    assert behaviour["InstanceInitiatedShutdownBehavior"]["Value"] == "terminate"
    disk = disk_of(ec2, machine.id)
    assert (disk["Size"], disk["VolumeType"]) == (300, "gp3")


def test_launch__on_demand_is_not_spot(ec2: FakeEc2, cloud: AwsCloud, request_of: Requests) -> None:
    (machine,) = cloud.launch(request_of(market=Market.ON_DEMAND))
    assert "InstanceLifecycle" not in as_ec2_tells(ec2, machine.id)


def test_launch__requests_all_nodes_in_one_call_with_ranks_by_launch_index(
    ec2: FakeEc2, cloud: AwsCloud, request_of: Requests
) -> None:
    machines = cloud.launch(request_of(num_nodes=4))
    assert ec2.calls["ec2:RunInstances"] == 1
    assert [one.rank for one in machines] == [0, 1, 2, 3]
    assert {one.id: one.index for one in ec2.purchases()} == {one.id: one.rank for one in machines}


def test_launch__is_idempotent_after_a_lost_response(ec2: FakeEc2, cloud: AwsCloud, request_of: Requests) -> None:
    ec2.faults.lost_answers["RunInstances"] = 1
    with pytest.raises(Exception) as caught:  # noqa: PT011 - the SDK's
        cloud.launch(request_of())
    assert cloud.classify(caught.value).kind is FaultKind.AMBIGUOUS
    (purchases,) = ec2.purchases()
    assert [one.id for one in cloud.launch(request_of())] == [purchases.id]
    assert len(ec2.purchases()) == 1


def test_launch__launches_nothing_after_a_lost_request(ec2: FakeEc2, cloud: AwsCloud, request_of: Requests) -> None:
    ec2.faults.lost_requests["RunInstances"] = 1
    with pytest.raises(Exception) as caught:  # noqa: PT011
        cloud.launch(request_of())
    assert cloud.classify(caught.value).kind is FaultKind.AMBIGUOUS
    assert not ec2.purchases()
    assert len(cloud.launch(request_of())) == 1


def test_launch__does_not_retry(ec2: FakeEc2, cloud: AwsCloud, request_of: Requests) -> None:
    cloud.launch(request_of())  # by now, the image is cached
    ec2.faults.throttle = 1
    with pytest.raises(Exception, match="RequestLimitExceeded") as caught:
        cloud.launch(request_of("t2"))
    fault = cloud.classify(caught.value)
    assert (fault.kind, fault.reason) == (FaultKind.RETRY_LATER, Reason.THROTTLED)
    assert ec2.calls["ec2:RunInstances"] == 2


def test_launch__returns_machines_of_its_token_with_changed_parameters(
    ec2: FakeEc2, cloud: AwsCloud, request_of: Requests
) -> None:
    """A daemon that was upgraded in between sends another agent along."""
    first = cloud.launch(request_of(num_nodes=2))
    upgraded = replace(request_of(num_nodes=2), bootstrap=Bootstrap("http://ctl:1", "attempt-token", {"agent": "cd"}))
    again = cloud.launch(upgraded)
    assert {one.id for one in again} == {one.id for one in first}
    assert len(ec2.purchases()) == 2


def test_describe__includes_new_machines_that_are_not_listed_yet(
    ec2: FakeEc2, cloud: AwsCloud, request_of: Requests, clock: ManualClock
) -> None:
    ec2.faults.listing_delay_s = 3600
    (machine,) = cloud.launch(request_of())
    assert not cloud.list_owned("ctl")
    (seen,) = cloud.describe("us-east-1", [machine.id])
    assert (seen.id, seen.state) == (machine.id, machine.state)
    assert not cloud.describe("us-west-2", [machine.id])
    clock.advance(RECENT_S)
    assert not cloud.describe("us-east-1", [machine.id])


def test_terminate__ends_the_others_despite_an_unknown_id(ec2: FakeEc2, cloud: AwsCloud, request_of: Requests) -> None:
    machines = cloud.launch(request_of(num_nodes=2))
    cloud.terminate("us-east-1", ["i-00000000000000000", *(one.id for one in machines)])
    assert not ec2.living()


def test_describe__splits_ids_into_batches(ec2: FakeEc2, cloud: AwsCloud, request_of: Requests) -> None:
    machines = cloud.launch(request_of(num_nodes=3))
    ids = [f"i-{number:017x}" for number in range(250)] + [one.id for one in machines]
    assert len(cloud.describe("us-east-1", ids)) == 3
    cloud.terminate("us-east-1", ids)
    assert not ec2.living()
    assert {one.state for one in cloud.describe("us-east-1", ids)} == {InstanceState.GONE}


def test_interrupt__is_reported_with_reason_and_time(ec2: FakeEc2, cloud: AwsCloud, request_of: Requests) -> None:
    (machine,) = cloud.launch(request_of())
    ec2.interrupt(machine.id)
    (gone,) = cloud.describe("us-east-1", [machine.id])
    assert (gone.state, gone.gone_reason) == (InstanceState.GONE, Reason.PREEMPTED)
    assert (gone.launched_at, gone.ended_at) == (ec2.purchases()[0].launched_at, ec2.purchases()[0].ended_at)


def test_launch__does_not_apply_a_spot_quota_to_on_demand(ec2: FakeEc2, cloud: AwsCloud, request_of: Requests) -> None:
    ec2.faults.launch_errors["us-east-1a", Market.SPOT] = "MaxSpotInstanceCountExceeded"
    with pytest.raises(Exception, match="Max spot") as caught:
        cloud.launch(request_of())
    assert cloud.classify(caught.value).kind is FaultKind.AVOID_REGION
    assert cloud.launch(request_of("t2", market=Market.ON_DEMAND))


def test_launch__rejects_an_invalid_image_before_the_call(ec2: FakeEc2, cloud: AwsCloud, request_of: Requests) -> None:
    for image in ("skypilot:gpu-ubuntu-2204", "ami-0000000000000dead"):
        with pytest.raises(Exception) as caught:  # noqa: PT011
            cloud.launch(request_of(image_id=image))
        fault = cloud.classify(caught.value)
        assert fault.kind is FaultKind.GIVE_UP
        assert image in fault.message
    assert not ec2.calls["ec2:RunInstances"]


def test_launch__uses_the_configured_subnet_and_role(
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
def test_launch__with_the_best_network_uses_an_adapter_per_supporting_card(
    ec2: FakeEc2, place: dict[str, str], request_of: Requests, kind: str, adapters: int
) -> None:
    cards = Fabric(clients(ec2)).cards("us-east-1", kind, place["subnet"])
    assert cards == tuple(range(adapters))
    where = {"subnet": place["subnet"], "security_groups": [place["security_group"]]}
    asked = launch_request.run_instances(request_of(kind=kind), Image("ami-1", "/dev/sda1", 8), adapters=cards, **where)
    attached = asked.pop("NetworkInterfaces", [])
    places = [(one["NetworkCardIndex"], one["DeviceIndex"]) for one in attached]
    assert len(set(places)) == len(places)
    assert sum(one["InterfaceType"].startswith("efa") for one in attached) == adapters
    if not adapters:
        assert (asked["SubnetId"], asked["SecurityGroupIds"]) == (place["subnet"], [place["security_group"]])
        return
    assert not {"SubnetId", "SecurityGroupIds"} & asked.keys(), "EC2 takes them in one place alone"
    assert {(one["SubnetId"], *one["Groups"]) for one in attached} == {tuple(place.values())}
    assert (places[0], attached[0]["InterfaceType"]) == ((0, 0), "efa" if adapters == 1 else "interface")


def test_launch__may_need_a_card_for_ip_alone(ec2: FakeEc2, place: dict[str, str]) -> None:
    """The first network card of 17 is such a card."""
    fabric = Fabric(clients(ec2))
    cards = fabric.cards("us-east-1", "p6-b300.48xlarge", place["subnet"])
    assert cards == tuple(range(1, 17))
    first, *others = interfaces(cards, subnet=None)
    assert (first["NetworkCardIndex"], first["DeviceIndex"], first["InterfaceType"]) == (0, 0, "interface")
    assert {(one["DeviceIndex"], one["InterfaceType"]) for one in others} == {(0, "efa-only")}
    assert fabric.cards("us-east-1", "p6-b300.48xlarge", None) == ()


def test_launch__uses_one_interface_if_a_public_address_is_needed(ec2: FakeEc2, place: dict[str, str]) -> None:
    fabric = Fabric(clients(ec2))
    assert fabric.cards("us-east-1", "p4d.24xlarge", None) == (0,)
    assert len(fabric.cards("us-east-1", "p4d.24xlarge", place["subnet"])) == 4
    client = boto3.client("ec2", region_name="us-east-1", endpoint_url=ec2.url)
    client.modify_subnet_attribute(SubnetId=place["subnet"], MapPublicIpOnLaunch={"Value": True})
    assert fabric.cards("us-east-1", "p4d.24xlarge", place["subnet"]) == (0,)
    assert ec2.calls["ec2:DescribeInstanceTypes"] == 1


def test_launch__uses_adapters_with_the_best_network_only(
    ec2: FakeEc2, new_cloud: Callable[..., AwsCloud], request_of: Requests, place: dict[str, str]
) -> None:
    """moto stores two of four adapters and an interface, since it distinguishes them by DeviceIndex only."""
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
