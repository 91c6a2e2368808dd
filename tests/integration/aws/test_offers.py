"""Offers and prices fetched from EC2, and the permissions for it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from moto.core import DEFAULT_ACCOUNT_ID
from moto.ec2.models import ec2_backends

from perdure.controller.clouds.aws.cloud import AwsCloud
from perdure.controller.clouds.aws.machines import launch_request
from perdure.controller.clouds.aws.pricing.catalog import TYPES, on_demand_price
from perdure.controller.clouds.base.protocol import LaunchRequest
from perdure.controller.clouds.pricing.price_list import MAX_AGE_S, RETRY_AFTER_FAILURE_S
from perdure.controller.runtime.clock import ManualClock
from perdure.recovery.market.unavailable import FaultKind
from perdure.recovery.market.view import Market
from perdure.recovery.reasons import Reason
from support.fakes.ec2 import FakeEc2
from support.fakes.ec2.fis import ROLE
from support.fakes.ec2.pricing import on_demand
from support.helpers.launch_requests import open_and_close, stop_and_start
from support.helpers.timing import scaled, wait_until

pytestmark = pytest.mark.long

POLICY = Path(__file__).parents[3] / "deploy" / "iam" / "aws-controller.json"
QUEUE = "https://sqs.us-east-1.amazonaws.com/123456789012/perdure"
WAIT_S = 30.0
FREE = "sts:GetCallerIdentity"  # anybody may
# Not called, but required by RunInstances: for tags, the first spot machine of an account, a machine's role.
IMPLIED = {"ec2:CreateTags", "iam:CreateServiceLinkedRole", "iam:PassRole"}


def crawls(ec2: FakeEc2) -> int:
    return ec2.calls["ec2:DescribeInstanceTypeOfferings"]


def test_offers__are_those_of_every_zone_at_its_price(ec2: FakeEc2, cloud: AwsCloud) -> None:
    cloud.prices.refresh(scaled(WAIT_S))
    offers = cloud.offers()
    assert {offer.region for offer in offers} == set(ec2.regions)
    assert {o.zone for o in offers if o.region == "us-west-2"} == {f"us-west-2{suffix}" for suffix in "abcd"}
    (h100,) = {o.accelerators for o in offers if o.instance_type == "p5.48xlarge"}
    assert h100 == ("H100", 8.0)
    spot = [o for o in offers if o.instance_type == "g5.xlarge" and o.market is Market.SPOT]
    assert len({o.price_per_hour for o in spot}) == len(spot) > 4
    assert all(o.on_demand_price_per_hour == on_demand(o.instance_type, o.region) for o in offers), "AWS's own"
    assert "p4de.24xlarge" not in {o.instance_type for o in offers if o.zone == "us-west-2d"}


def test_offers__include_types_that_the_table_lacks(cloud: AwsCloud, request_of: Callable[..., LaunchRequest]) -> None:
    cloud.prices.refresh(scaled(WAIT_S))
    offers = {o.instance_type: o for o in cloud.offers() if o.market is Market.SPOT}
    h200 = offers["p5e.48xlarge"]
    assert (h200.vcpus, h200.memory_gib, h200.accelerators) == (192, 2048, ("H200", 8.0))
    assert offers["m8i.large"].accelerators is None
    assert not {"m7g.large", "g5g.xlarge"} & offers.keys(), "ARM"
    assert not {"g6f.large", "inf2.xlarge", "m8i.metal-48xl"} & offers.keys()
    with_gpu = offers["gr6.4xlarge"]
    assert launch_request.image_parameter(with_gpu) == launch_request.GPU_IMAGE
    (machine,) = cloud.launch(replace(request_of(), offer=with_gpu))
    assert (machine.instance_type, machine.zone) == ("gr6.4xlarge", with_gpu.zone)


def test_offers__fall_back_to_the_table_with_an_older_policy(ec2: FakeEc2, cloud: AwsCloud) -> None:
    ec2.faults.forbid = {"ec2:DescribeInstanceTypes", "pricing:GetProducts"}
    cloud.prices.refresh(scaled(WAIT_S))
    offers = cloud.offers()
    assert {o.instance_type for o in offers} <= TYPES.keys()
    assert {o.instance_type for o in offers} >= {"m6i.large", "p5.48xlarge"}
    assert all(o.on_demand_price_per_hour == on_demand_price(TYPES[o.instance_type], o.region) for o in offers)


def test_offers__are_fetched_once_until_they_are_old(
    ec2: FakeEc2, cloud: AwsCloud, new_cloud: Callable[[], AwsCloud], clock: ManualClock
) -> None:
    cloud.prices.refresh(scaled(WAIT_S))
    first = cloud.offers()
    assert cloud.offers() is first
    assert crawls(ec2) == len(ec2.regions)
    assert new_cloud().offers() == first, "a new daemon finds them in the database"
    assert crawls(ec2) == len(ec2.regions)
    clock.advance(MAX_AGE_S)
    assert cloud.offers() is first, "offers() does not wait for the new ones"
    wait_until(lambda: crawls(ec2) == 2 * len(ec2.regions) and cloud.offers() is not first)
    assert cloud.offers() == first


def test_offers__stay_while_a_fetch_fails(ec2: FakeEc2, cloud: AwsCloud, clock: ManualClock) -> None:
    cloud.prices.refresh(scaled(WAIT_S))
    first = cloud.offers()
    ec2.faults.deny = "AuthFailure"
    clock.advance(MAX_AGE_S)
    cloud.offers()
    wait_until(lambda: crawls(ec2) == 2 * len(ec2.regions))
    wait_until(lambda: "the last update failed" in cloud.notes()[-1])
    assert cloud.offers() == first
    ec2.faults.deny = None
    wait_until(lambda: clock.advance(RETRY_AFTER_FAILURE_S) or (cloud.offers() and crawls(ec2) > 2 * len(ec2.regions)))


def test_notes__say_whose_prices_they_are(ec2: FakeEc2, cloud: AwsCloud) -> None:
    assert "aws could not be asked what it offers, so a built-in table" in cloud.notes()[0]
    assert not any("AWS's list prices" in note for note in cloud.notes())
    cloud.prices.refresh(scaled(WAIT_S))
    assert cloud.notes()[0].startswith("prices are AWS's list prices")


def test_offers__raise_denied_access_with_a_hint(ec2: FakeEc2, cloud: AwsCloud, clock: ManualClock) -> None:
    ec2.faults.deny = "AuthFailure"
    cloud.prices.refresh(scaled(WAIT_S))
    with pytest.raises(Exception, match="AuthFailure") as caught:
        cloud.offers()
    fault = cloud.classify(caught.value)
    assert (fault.kind, fault.reason) == (FaultKind.AVOID_CLOUD, Reason.BAD_CREDENTIALS)
    assert "aws sts get-caller-identity" in fault.message
    ec2.faults.deny = None
    clock.advance(RETRY_AFTER_FAILURE_S)
    cloud.prices.refresh(scaled(WAIT_S))
    assert cloud.offers()


def test_policy__allows_exactly_the_calls_that_are_made(
    ec2: FakeEc2, new_cloud: Callable[..., AwsCloud], request_of: Callable[..., LaunchRequest]
) -> None:
    """Makes every call that the code can make, and checks that the code uses no other method of a client.

    EC2 refuses what the conditions of the policy do not allow.
    """
    statements = json.loads(POLICY.read_text())["Statement"]
    ec2.faults.policy = statements
    cloud = new_cloud(regions=())
    assert set(ec2.regions) < set(cloud.regions())
    new_cloud().prices.refresh(scaled(WAIT_S))
    wait_until(new_cloud(placement_scores=True).advice)
    (machine,) = cloud.launch(request_of())
    cloud.describe("us-east-1", [machine.id])
    cloud.console_output("us-east-1", machine.id)
    ec2.faults.denied_regions = {"us-east-1"}
    with pytest.raises(Exception, match="explicit deny"):
        cloud.launch(request_of("t5"))
    ec2.faults.denied_regions = set()
    subnet = ec2_backends[DEFAULT_ACCOUNT_ID]["us-east-1"].get_default_subnets()["us-east-1a"].id
    new_cloud(subnets={"us-east-1a": subnet}).launch(request_of("t2", kind="p4d.24xlarge", network_tier="best"))
    new_cloud(fis_role=ROLE).interrupt("us-east-1", machine.id, notice_s=120.0)
    cloud.terminate("us-east-1", [machine.id])
    stop_and_start(cloud, request_of("t3", market=Market.ON_DEMAND))
    open_and_close(cloud, request_of("t4"))
    ec2.sqs("us-east-1").create_queue(QueueName="perdure")
    ec2.sqs("us-east-1").send_message(QueueUrl=QUEUE, MessageBody="{}")
    (queue,) = new_cloud(interruption_queues=(QUEUE,)).notice_queues()
    queue.delete(queue.receive())
    cloud.check()
    called = set(ec2.calls) - {"sqs:CreateQueue", "sqs:SendMessage", FREE}
    allowed = {a for s in statements for a in ([s["Action"]] if isinstance(s["Action"], str) else s["Action"])}
    # The permission for one message also allows a batch.
    assert allowed == {call.removesuffix("Batch") for call in called} | IMPLIED
    package = Path(__file__).parents[3] / "controller/perdure/controller/clouds/aws"
    # The calls of a controller host's setup are checked in test_controller_host.py.
    code = "".join(
        path.read_text() for path in package.rglob("*.py") if path.name not in ("controller_host.py", "iam.py")
    )
    verbs = "decode|describe|run|terminate|get|create|authorize|revoke|modify|start|stop|delete|receive"
    named = set(re.findall(rf"(?:ec2|ssm|fis|sqs|sts)(?:\([^)]*\))?\s*\.((?:{verbs})_(?!paginator)\w+)\(", code))
    named |= set(re.findall(r"get_paginator\(\"(\w+)\"\)", code))
    assert {"".join(map(str.title, name.split("_"))) for name in named} == {c.partition(":")[2] for c in called}
