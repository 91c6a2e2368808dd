"""What a refusal covers and how long it lasts."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perdure.recovery.market import FaultKind, Market, Offer, Refusal
from perdure.recovery.policies.cooldown import COOLDOWNS, cooldown_s, launch_refusal, preemption_refusal, repeats
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


def covered(refusal: Refusal) -> set[str]:
    assert refusal.covers(HERE)
    return {name for name, offer in ELSEWHERE.items() if refusal.covers(offer)}


def test_a_preemption_cools_down_its_zone_type_and_market() -> None:
    refusal = preemption_refusal(HERE, NOW)
    assert covered(refusal) == set()
    assert refusal.from_preemption
    assert (refusal.at, refusal.until) == (NOW, NOW + 1800)
    assert preemption_refusal(HERE, NOW, cooldown_s=7).until == NOW + 7


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
def test_the_kind_implies_a_place(kind: FaultKind, expected: set[str]) -> None:
    refusal = launch_refusal(HERE, NOW, kind=kind)
    assert covered(refusal) == expected
    assert refusal.kind is kind
    assert refusal.until == NOW + COOLDOWNS[kind].first_s


def test_the_cloud_may_widen_it() -> None:
    wide = launch_refusal(HERE, NOW, kind=FaultKind.AVOID_ZONE, whole_region=True, any_market=True)
    assert covered(wide) == {"zone", "on-demand"}
    types = launch_refusal(HERE, NOW, kind=FaultKind.AVOID_REGION, any_instance_type=True)
    assert covered(types) == {"zone", "type"}
    assert covered(launch_refusal(HERE, NOW, kind=FaultKind.RETRY_LATER, whole_cloud=True)) == {"zone", "region"}


def test_broken_credentials_put_the_cloud_out_of_reach() -> None:
    refusal = launch_refusal(HERE, NOW, kind=FaultKind.AVOID_CLOUD, reason=Reason.BAD_CREDENTIALS, code="AuthFailure")
    assert refusal.kind is FaultKind.GIVE_UP
    assert covered(refusal) == {"on-demand", "type", "zone", "region"}
    assert refusal.code == "AuthFailure"


def test_the_clouds_own_word_on_time_is_taken() -> None:
    earlier = [launch_refusal(HERE, NOW - 100, kind=FaultKind.AVOID_ZONE, retry_after_s=1)]
    refusal = launch_refusal(HERE, NOW, kind=FaultKind.AVOID_ZONE, retry_after_s=42, earlier=earlier)
    assert refusal.until == NOW + 42


def test_it_lasts_longer_each_time_it_was_in_vain_up_to_a_cap() -> None:
    earlier: list[Refusal] = []
    now, lasted = NOW, []
    for _ in range(6):
        refusal = launch_refusal(HERE, now, kind=FaultKind.AVOID_ZONE, earlier=earlier)
        earlier.append(refusal)
        lasted.append(refusal.until - now)
        now = refusal.until
    assert lasted == [180, 360, 600, 600, 600, 600]


def test_jobs_refused_side_by_side_count_once() -> None:
    together = [launch_refusal(HERE, NOW + i, kind=FaultKind.AVOID_ZONE) for i in range(50)]
    assert repeats(HERE, together, NOW + 400, kind=FaultKind.AVOID_ZONE) == 1


def test_only_recent_refusals_of_this_kind_and_offer_count() -> None:
    preempted = preemption_refusal(HERE, NOW)
    elsewhere = launch_refusal(OTHER_ZONE, NOW, kind=FaultKind.AVOID_ZONE)
    throttled = launch_refusal(HERE, NOW, kind=FaultKind.RETRY_LATER)
    old = launch_refusal(HERE, NOW - 24 * 3600, kind=FaultKind.AVOID_ZONE)
    others = [preempted, elsewhere, throttled, old]
    assert repeats(HERE, others, NOW + 1, kind=FaultKind.AVOID_ZONE) == 0
    assert repeats(HERE, others, NOW + 1, kind=FaultKind.RETRY_LATER) == 1


def test_every_kind_has_a_cooldown_that_ends() -> None:
    for kind in FaultKind:
        assert 0 < cooldown_s(kind, 0) <= cooldown_s(kind, 10**6) <= 24 * 3600
