"""A policy without one of its parts does what the part keeps it from."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perdure.recovery.history import History, Sighting, StartUps, learn
from perdure.recovery.job import AttemptView, NodeView, Recovery, TaskView
from perdure.recovery.market import FaultKind, Market, MarketView, Offer
from perdure.recovery.needs import Need
from perdure.recovery.policies.choice import Move, Place, Stay, Wait
from perdure.recovery.policies.cooldown import launch_refusal, preemption_refusal
from perdure.recovery.policies.parts import PARTS
from perdure.recovery.policies.registry import UnknownStrategy, policy
from perdure.recovery.statuses import AttemptState, TaskState

NOW = 1_000_000.0
HOUR = 3600.0
SPOT = Offer("aws", "east", "e1", "v", Market.SPOT, 1.0, 3.0, 8, 61)
STABLE = replace(SPOT, region="west", zone="w1", price_per_hour=1.05)
DEAR = replace(SPOT, region="west", zone="w1", price_per_hour=2.5)
CERTAIN = replace(SPOT, market=Market.ON_DEMAND, price_per_hour=3.0)
TASK = TaskView(0, (Need(),), recovery=Recovery("DEADLINE", deadline_at=NOW + 60 * HOUR, work_s=48 * HOUR), wake_at=NOW)
WHOLE = policy("DEADLINE")


def short_of(part: str):
    return policy(f"DEADLINE without {part}")


def runs_on(offer: Offer) -> TaskView:
    attempt = AttemptView(1, AttemptState.RUNNING, offer, (NodeView(0),), NOW, NOW, NOW)
    return replace(TASK, attempts=(attempt,), state=TaskState.RUNNING, run_since=NOW, last_offer=offer)


def test_the_reserve_is_not_waited_away() -> None:
    late = replace(TASK, recovery=replace(TASK.recovery, deadline_at=NOW + 52 * HOUR))
    market = MarketView((SPOT, CERTAIN), (launch_refusal(SPOT, NOW, kind=FaultKind.AVOID_ZONE),))
    assert WHOLE.choose(late, market, NOW) == Place(CERTAIN)
    assert isinstance(short_of("reserve").choose(late, market, NOW), Wait)


@pytest.mark.parametrize(("part", "here"), [("returns", CERTAIN), ("moves", DEAR)])
def test_it_goes_where_it_is_cheaper(part: str, here: Offer) -> None:
    market = MarketView((SPOT, DEAR, CERTAIN))
    assert isinstance(WHOLE.reconsider(runs_on(here), market, NOW), Move)
    assert isinstance(short_of(part).reconsider(runs_on(here), market, NOW), Stay)


def test_a_zone_that_took_a_machine_cools_down() -> None:
    market = MarketView((SPOT, DEAR, CERTAIN), (preemption_refusal(SPOT, NOW - 1),))
    assert WHOLE.choose(TASK, market, NOW) == Place(DEAR)
    assert short_of("cooldown").choose(TASK, market, NOW) == Place(SPOT)


@pytest.mark.parametrize("part", ["lives", "volatility"])
def test_a_zone_that_often_loses_machines_is_worth_less(part: str) -> None:
    history = History()
    for i in range(40):
        begun = NOW - 20 * HOUR + i * 1800
        history = learn(history, Sighting(SPOT.key, begun, available=True))
        history = learn(history, Sighting(SPOT.key, begun + 600, available=False, held_since=begun))
    market = MarketView((SPOT, STABLE, CERTAIN), history=learn(history, Sighting(SPOT.key, NOW, available=True)))
    assert WHOLE.choose(TASK, market, NOW) == Place(STABLE)
    if part == "lives":
        assert short_of(part).choose(TASK, market, NOW) == Place(SPOT)
    else:
        lives = [policy.life_s(SPOT.key, NOW) for policy in (market.history, short_of(part)._seen(market).history)]
        assert lives[0] < lives[1]


def test_quick_starts_make_it_bold() -> None:
    tight = replace(TASK, recovery=replace(TASK.recovery, deadline_at=NOW + 49 * HOUR))
    starts = StartUps()
    for _ in range(50):
        starts = starts.plus(60.0)
    market = MarketView((SPOT, CERTAIN), history=History(start_ups=starts))
    assert WHOLE.choose(tight, market, NOW) == Place(SPOT)
    assert short_of("starts").choose(tight, market, NOW) == Place(CERTAIN)


def test_parts_are_known_by_name() -> None:
    assert all(short_of(part) != WHOLE for part in PARTS)
    with pytest.raises(UnknownStrategy, match="no part called 'wheels'; choose one of reserve, returns, moves"):
        policy("DEADLINE without wheels")
    with pytest.raises(UnknownStrategy, match="CHEAPEST has no part called 'reserve'"):
        policy("CHEAPEST without reserve")
