"""Spot placement scores: when they are fetched, and how they count."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from perdure.controller.clouds.aws.cloud import AwsCloud
from perdure.controller.clouds.aws.pricing.placement_scores import AGE_S, families
from perdure.controller.clouds.base.protocol import HasPlacementAdvice
from perdure.controller.reconcile.market_state import MarketState as KnownMarket
from perdure.controller.runtime.clock import ManualClock
from perdure.recovery.market.view import Market, Offer
from support.fakes.ec2 import FakeEc2
from support.helpers.timing import wait_until

pytestmark = pytest.mark.long


def asked(ec2: FakeEc2) -> int:
    return ec2.calls["ec2:GetSpotPlacementScores"]


def test_placement_scores__are_per_zone(ec2: FakeEc2, new_cloud: Callable[..., AwsCloud]) -> None:
    ec2.faults.scores = {"us-east-1a": 9, "us-east-1b": 1}
    cloud = new_cloud(placement_scores=True)
    assert isinstance(cloud, HasPlacementAdvice)
    rates = {a.key.zone: a.rate for a in wait_until(cloud.advice) if a.key.instance_type == "g5.xlarge"}
    assert rates["us-east-1a"] == 0.5
    assert rates["us-east-1b"] == 2.0
    assert rates["us-west-2a"] == 1.0
    assert {len(kinds) >= 3 for kinds in families()} == {True}, "fewer score low wherever they are"


def test_placement_scores__are_fetched_in_the_background_once_an_hour(
    ec2: FakeEc2, new_cloud: Callable[..., AwsCloud], clock: ManualClock
) -> None:
    cloud = new_cloud(placement_scores=True)
    assert cloud.advice() == ()
    wait_until(cloud.advice)
    calls = asked(ec2)
    assert calls == len(families())
    cloud.advice()
    assert asked(ec2) == calls
    clock.advance(AGE_S)
    cloud.advice()
    wait_until(lambda: asked(ec2) == 2 * calls)


def test_placement_scores__are_fetched_only_if_enabled(ec2: FakeEc2, cloud: AwsCloud) -> None:
    assert cloud.advice() == ()
    assert asked(ec2) == 0


def test_placement_scores__reach_the_market_history(
    ec2: FakeEc2, new_cloud: Callable[..., AwsCloud], clock: ManualClock
) -> None:
    ec2.faults.scores = {"us-east-1a": 1}
    cloud = new_cloud(placement_scores=True)
    market = KnownMarket({"aws": cloud}, clock)
    wait_until(cloud.advice)
    view = market.view()

    def volatility(zone: str) -> float:
        def is_it(offer: Offer) -> bool:
            return (offer.zone, offer.instance_type, offer.market) == (zone, "g5.xlarge", Market.SPOT)

        return view.history.volatility(next(filter(is_it, view.offers)).key, clock.now())

    assert volatility("us-east-1a") > volatility("us-east-1b") == 1.0
