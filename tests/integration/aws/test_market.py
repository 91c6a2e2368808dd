"""Zones and prices, crawled; and who may crawl."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from moto.core import DEFAULT_ACCOUNT_ID
from moto.ec2.models import ec2_backends

from fake_ec2 import FakeEc2
from fake_ec2.fis import ROLE
from fake_ec2.pricing import on_demand
from perdure.controller.clock import ManualClock
from perdure.controller.clouds.aws import launching
from perdure.controller.clouds.aws.catalog import TYPES, on_demand_price
from perdure.controller.clouds.aws.cloud import AwsCloud
from perdure.controller.clouds.base import LaunchRequest
from perdure.controller.clouds.pricelist import AGE_AFTER_TROUBLE_S, AGE_S
from perdure.recovery.market import FaultKind, Market
from perdure.recovery.reasons import Reason

POLICY = Path(__file__).parents[3] / "deploy" / "iam" / "aws-controller.json"
QUEUE = "https://sqs.us-east-1.amazonaws.com/123456789012/perdure"
WAIT_S = 30.0
FREE = "sts:GetCallerIdentity"  # anybody may
# Never called, but needed by RunInstances: for tags, for the first spot machine of an account, for a machine's role.
IMPLIED = {"ec2:CreateTags", "iam:CreateServiceLinkedRole", "iam:PassRole"}


def crawls(ec2: FakeEc2) -> int:
    return ec2.calls["ec2:DescribeInstanceTypeOfferings"]


def until(condition: Callable[[], Any]) -> None:
    for _ in range(1200):
        if condition():
            return
        Event().wait(0.05)
    raise AssertionError("in vain")


def test_offers_are_those_of_every_zone_at_its_own_price(ec2: FakeEc2, cloud: AwsCloud) -> None:
    cloud.prices.refresh(WAIT_S)
    offers = cloud.offers()
    assert {offer.region for offer in offers} == set(ec2.regions)
    assert {o.zone for o in offers if o.region == "us-west-2"} == {f"us-west-2{letter}" for letter in "abcd"}
    (h100,) = {o.accelerators for o in offers if o.instance_type == "p5.48xlarge"}
    assert h100 == ("H100", 8.0)
    spot = [o for o in offers if o.instance_type == "g5.xlarge" and o.market is Market.SPOT]
    assert len({o.price_per_hour for o in spot}) == len(spot) > 4
    assert all(o.on_demand_price_per_hour == on_demand(o.instance_type, o.region) for o in offers), "AWS's own"
    assert "p4de.24xlarge" not in {o.instance_type for o in offers if o.zone == "us-west-2d"}


def test_what_the_table_lacks_is_offered_as_ec2_describes_it(
    cloud: AwsCloud, request_of: Callable[..., LaunchRequest]
) -> None:
    cloud.prices.refresh(WAIT_S)
    offers = {o.instance_type: o for o in cloud.offers() if o.market is Market.SPOT}
    h200 = offers["p5e.48xlarge"]
    assert (h200.vcpus, h200.memory_gib, h200.accelerators) == (192, 2048, ("H200", 8.0))
    assert offers["m8i.large"].accelerators is None
    assert not {"m7g.large", "g5g.xlarge"} & offers.keys(), "ARM"
    assert not {"g6f.large", "inf2.xlarge", "m8i.metal-48xl"} & offers.keys()
    with_gpu = offers["gr6.4xlarge"]
    assert launching.image_parameter(with_gpu) == launching.GPU_IMAGE
    (machine,) = cloud.launch(replace(request_of(), offer=with_gpu))
    assert (machine.instance_type, machine.zone) == ("gr6.4xlarge", with_gpu.zone)


def test_an_older_policy_leaves_all_of_the_table_at_its_prices(ec2: FakeEc2, cloud: AwsCloud) -> None:
    ec2.faults.forbid = {"ec2:DescribeInstanceTypes", "pricing:GetProducts"}
    cloud.prices.refresh(WAIT_S)
    offers = cloud.offers()
    assert {o.instance_type for o in offers} <= TYPES.keys()
    assert {o.instance_type for o in offers} >= {"m6i.large", "p5.48xlarge"}
    assert all(o.on_demand_price_per_hour == on_demand_price(TYPES[o.instance_type], o.region) for o in offers)


def test_a_crawl_is_done_once_and_again_when_it_is_old(
    ec2: FakeEc2, cloud: AwsCloud, new_cloud: Callable[[], AwsCloud], clock: ManualClock
) -> None:
    cloud.prices.refresh(WAIT_S)
    first = cloud.offers()
    assert cloud.offers() is first
    assert crawls(ec2) == len(ec2.regions)
    assert new_cloud().offers() == first, "a new daemon finds them in the database"
    assert crawls(ec2) == len(ec2.regions)
    clock.advance(AGE_S)
    assert cloud.offers() is first, "nobody waits for the new ones"
    until(lambda: crawls(ec2) == 2 * len(ec2.regions) and cloud.offers() is not first)
    assert cloud.offers() == first


def test_a_market_that_is_not_told_of_for_a_while_stays_as_it_was(
    ec2: FakeEc2, cloud: AwsCloud, clock: ManualClock
) -> None:
    cloud.prices.refresh(WAIT_S)
    first = cloud.offers()
    ec2.faults.deny = "AuthFailure"
    clock.advance(AGE_S)
    cloud.offers()
    until(lambda: crawls(ec2) == 2 * len(ec2.regions))
    until(lambda: "the last try failed" in cloud.notes()[-1])
    assert cloud.offers() == first
    ec2.faults.deny = None
    until(lambda: clock.advance(AGE_AFTER_TROUBLE_S) or (cloud.offers() and crawls(ec2) > 2 * len(ec2.regions)))


def test_whoever_is_not_let_in_is_told_what_to_do(ec2: FakeEc2, cloud: AwsCloud, clock: ManualClock) -> None:
    ec2.faults.deny = "AuthFailure"
    cloud.prices.refresh(WAIT_S)
    with pytest.raises(Exception, match="AuthFailure") as caught:
        cloud.offers()
    fault = cloud.classify(caught.value)
    assert (fault.kind, fault.reason) == (FaultKind.AVOID_CLOUD, Reason.BAD_CREDENTIALS)
    assert "aws sts get-caller-identity" in fault.message
    ec2.faults.deny = None
    clock.advance(AGE_AFTER_TROUBLE_S)
    cloud.prices.refresh(WAIT_S)
    assert cloud.offers()


def test_the_policy_allows_what_is_called_and_nothing_more(
    ec2: FakeEc2, new_cloud: Callable[..., AwsCloud], request_of: Callable[..., LaunchRequest]
) -> None:
    """Every call that the code can make, made; and no method of a client in the code that was not."""
    cloud = new_cloud(regions=())
    assert set(ec2.regions) < set(cloud.regions())
    new_cloud().prices.refresh(WAIT_S)
    until(new_cloud(placement_scores=True).advice)
    (machine,) = cloud.launch(request_of())
    cloud.describe("us-east-1", [machine.id])
    subnet = ec2_backends[DEFAULT_ACCOUNT_ID]["us-east-1"].get_default_subnets()["us-east-1a"].id
    new_cloud(subnets={"us-east-1a": subnet}).launch(request_of("t2", kind="p4d.24xlarge", network_tier="best"))
    new_cloud(fis_role=ROLE).interrupt("us-east-1", machine.id, notice_s=120.0)
    cloud.terminate("us-east-1", [machine.id])
    ec2.sqs("us-east-1").create_queue(QueueName="perdure")
    ec2.sqs("us-east-1").send_message(QueueUrl=QUEUE, MessageBody="{}")
    (queue,) = new_cloud(notice_queues=(QUEUE,)).notice_queues()
    queue.delete(queue.receive())
    cloud.check()
    called = set(ec2.calls) - {"sqs:CreateQueue", "sqs:SendMessage", FREE}
    statements = json.loads(POLICY.read_text())["Statement"]
    allowed = {a for s in statements for a in ([s["Action"]] if isinstance(s["Action"], str) else s["Action"])}
    # A batch is allowed by the permission for one.
    assert allowed == {call.removesuffix("Batch") for call in called} | IMPLIED
    package = Path(__file__).parents[3] / "controller/perdure/controller/clouds/aws"
    # What a controller's own machine takes is called by whoever brings it up: test_standing.py.
    code = "".join(path.read_text() for path in package.glob("*.py") if path.name != "standing.py")
    verbs = "describe|run|terminate|get|create|start|delete|receive"
    named = set(re.findall(rf"(?:ec2|ssm|fis|sqs)(?:\([^)]*\))?\s*\.((?:{verbs})_(?!paginator)\w+)\(", code))
    named |= set(re.findall(r"get_paginator\(\"(\w+)\"\)", code))
    assert {"".join(map(str.title, name.split("_"))) for name in named} == {c.partition(":")[2] for c in called}
