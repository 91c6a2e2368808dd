"""Placement scores: asked for where they mean something, and taken for evidence."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event
from typing import Any

from fake_ec2 import FakeEc2
from perdure.controller.clock import ManualClock
from perdure.controller.clouds.aws.cloud import AwsCloud
from perdure.controller.clouds.aws.placement import AGE_S, families
from perdure.controller.clouds.base import Advising
from perdure.controller.market import Market as KnownMarket
from perdure.recovery.market import Market, Offer


def until(condition: Callable[[], Any]) -> Any:
    for _ in range(600):
        if found := condition():
            return found
        Event().wait(0.05)
    raise AssertionError("in vain")


def asked(ec2: FakeEc2) -> int:
    return ec2.calls["ec2:GetSpotPlacementScores"]


def test_each_zone_has_the_score_of_its_own(ec2: FakeEc2, new_cloud: Callable[..., AwsCloud]) -> None:
    ec2.faults.scores = {"us-east-1a": 9, "us-east-1b": 1}
    cloud = new_cloud(placement_scores=True)
    assert isinstance(cloud, Advising)
    rates = {a.key.zone: a.rate for a in until(cloud.advice) if a.key.instance_type == "g5.xlarge"}
    assert rates["us-east-1a"] == 0.5
    assert rates["us-east-1b"] == 2.0
    assert rates["us-west-2a"] == 1.0
    assert {len(kinds) >= 3 for kinds in families()} == {True}, "fewer score low wherever they are"


def test_nobody_waits_for_them_and_they_are_asked_for_once_an_hour(
    ec2: FakeEc2, new_cloud: Callable[..., AwsCloud], clock: ManualClock
) -> None:
    cloud = new_cloud(placement_scores=True)
    assert cloud.advice() == ()
    until(cloud.advice)
    calls = asked(ec2)
    assert calls == len(families())
    cloud.advice()
    assert asked(ec2) == calls
    clock.advance(AGE_S)
    cloud.advice()
    until(lambda: asked(ec2) == 2 * calls)


def test_they_are_not_asked_for_unless_that_is_wanted(ec2: FakeEc2, cloud: AwsCloud) -> None:
    assert cloud.advice() == ()
    assert asked(ec2) == 0


def test_what_they_say_is_in_the_history_that_policies_read(
    ec2: FakeEc2, new_cloud: Callable[..., AwsCloud], clock: ManualClock
) -> None:
    ec2.faults.scores = {"us-east-1a": 1}
    cloud = new_cloud(placement_scores=True)
    market = KnownMarket({"aws": cloud}, clock)
    until(cloud.advice)
    market.forget_offers()
    view = market.view()

    def volatility(zone: str) -> float:
        def is_it(offer: Offer) -> bool:
            return (offer.zone, offer.instance_type, offer.market) == (zone, "g5.xlarge", Market.SPOT)

        return view.history.volatility(next(filter(is_it, view.offers)).key, clock.now())

    assert volatility("us-east-1a") > volatility("us-east-1b") == 1.0
