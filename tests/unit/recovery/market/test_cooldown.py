"""What an unavailable offer covers, and how long it is avoided."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan

import pytest

from perdure.recovery.market.cooldown import (
    COOLDOWNS,
    cooldown_s,
    failed_tries,
    has_default_cooldown,
    unavailable_after_launch,
    unavailable_after_preemption,
)
from perdure.recovery.market.unavailable import FaultKind, UnavailableOffer
from perdure.recovery.market.view import Market, Offer
from perdure.recovery.reasons import Reason

NOW = 1_000_000.0
HERE = Offer("aws", "us-east-1", "us-east-1a", "p3.2xlarge", Market.SPOT, 0.9, 3.06, 8, 61, ("V100", 1))
ON_DEMAND = replace(HERE, market=Market.ON_DEMAND)
OTHER_TYPE = replace(HERE, instance_type="g4dn.xlarge")
OTHER_ZONE = replace(HERE, zone="us-east-1b")
OTHER_REGION = replace(HERE, region="us-west-2", zone="us-west-2a")
OTHER_CLOUD = replace(HERE, cloud="gcp")
ELSEWHERE = {
    "on-demand": ON_DEMAND,
    "type": OTHER_TYPE,
    "zone": OTHER_ZONE,
    "region": OTHER_REGION,
    "cloud": OTHER_CLOUD,
}


def covered(unavailable: UnavailableOffer) -> set[str]:
    assert unavailable.covers(HERE)
    return {name for name, offer in ELSEWHERE.items() if unavailable.covers(offer)}


def test_preemption__covers_zone_type_and_market() -> None:
    unavailable = unavailable_after_preemption(HERE, NOW)
    assert covered(unavailable) == set()
    assert unavailable.from_preemption
    assert (unavailable.at, unavailable.until) == (NOW, NOW + 1800)
    assert unavailable_after_preemption(HERE, NOW, cooldown_s=7).until == NOW + 7


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (FaultKind.AVOID_ZONE, set()),
        (FaultKind.RETRY_LATER, set()),
        (FaultKind.GIVE_UP, set()),
        (FaultKind.AVOID_REGION, {"zone"}),
        (FaultKind.AVOID_CLOUD, {"zone", "region"}),
    ],
)
def test_launch_failure__kind_decides_scope(kind: FaultKind, expected: set[str]) -> None:
    unavailable = unavailable_after_launch(HERE, NOW, kind=kind)
    assert covered(unavailable) == expected
    assert unavailable.kind is kind
    assert unavailable.until == NOW + COOLDOWNS[kind].initial_s


def test_launch_failure__cloud_may_widen_scope() -> None:
    wide = unavailable_after_launch(HERE, NOW, kind=FaultKind.AVOID_ZONE, whole_region=True, any_market=True)
    assert covered(wide) == {"zone", "on-demand"}
    types = unavailable_after_launch(HERE, NOW, kind=FaultKind.AVOID_REGION, any_instance_type=True)
    assert covered(types) == {"zone", "type"}
    assert covered(unavailable_after_launch(HERE, NOW, kind=FaultKind.RETRY_LATER, whole_cloud=True)) == {
        "zone",
        "region",
    }


def test_launch_failure__bad_credentials_cover_whole_cloud() -> None:
    unavailable = unavailable_after_launch(
        HERE, NOW, kind=FaultKind.AVOID_CLOUD, reason=Reason.BAD_CREDENTIALS, code="AuthFailure"
    )
    assert unavailable.kind is FaultKind.GIVE_UP
    assert covered(unavailable) == {"on-demand", "type", "zone", "region"}
    assert unavailable.code == "AuthFailure"


def test_launch_failure__uses_retry_time_of_cloud() -> None:
    earlier = [unavailable_after_launch(HERE, NOW - 100, kind=FaultKind.AVOID_ZONE, retry_after_s=1)]
    unavailable = unavailable_after_launch(HERE, NOW, kind=FaultKind.AVOID_ZONE, retry_after_s=42, earlier=earlier)
    assert unavailable.until == NOW + 42


@pytest.mark.parametrize("retry_after_s", [nan, inf, -inf])
def test_launch_failure__ignores_retry_time_that_is_not_finite(retry_after_s: float) -> None:
    unavailable = unavailable_after_launch(HERE, NOW, kind=FaultKind.RETRY_LATER, retry_after_s=retry_after_s)
    assert unavailable.until == NOW + COOLDOWNS[FaultKind.RETRY_LATER].initial_s


def test_launch_failure__cooldown_doubles_up_to_maximum() -> None:
    earlier: list[UnavailableOffer] = []
    now, lasted = NOW, []
    for _ in range(6):
        unavailable = unavailable_after_launch(HERE, now, kind=FaultKind.AVOID_ZONE, earlier=earlier)
        earlier.append(unavailable)
        lasted.append(unavailable.until - now)
        now = unavailable.until
    assert lasted == [180, 360, 600, 600, 600, 600]


def test_failed_tries__counts_concurrent_failures_once() -> None:
    together = [unavailable_after_launch(HERE, NOW + i, kind=FaultKind.AVOID_ZONE) for i in range(50)]
    assert failed_tries(HERE, together, NOW + 400, kind=FaultKind.AVOID_ZONE) == 1


def test_failed_tries__counts_recent_failures_of_same_kind_and_offer() -> None:
    preempted = unavailable_after_preemption(HERE, NOW)
    elsewhere = unavailable_after_launch(OTHER_ZONE, NOW, kind=FaultKind.AVOID_ZONE)
    throttled = unavailable_after_launch(HERE, NOW, kind=FaultKind.RETRY_LATER)
    old = unavailable_after_launch(HERE, NOW - 24 * 3600, kind=FaultKind.AVOID_ZONE)
    others = [preempted, elsewhere, throttled, old]
    assert failed_tries(HERE, others, NOW + 1, kind=FaultKind.AVOID_ZONE) == 0
    assert failed_tries(HERE, others, NOW + 1, kind=FaultKind.RETRY_LATER) == 1


def test_cooldown__is_finite_for_every_kind() -> None:
    for kind in FaultKind:
        assert 0 < cooldown_s(kind, 0) <= cooldown_s(kind, 10**6) <= 24 * 3600


@pytest.mark.parametrize(
    ("duration", "is_default"), [(180, True), (360, True), (600, True), (300, False), (inf, False)]
)
def test_default_cooldown__differs_from_a_time_of_its_own(duration: float, is_default: bool) -> None:
    at = 1_800_000_000.123456  # its sums are rounded
    one = replace(unavailable_after_launch(HERE, at, kind=FaultKind.AVOID_ZONE), until=at + duration)
    assert has_default_cooldown(one) is is_default
