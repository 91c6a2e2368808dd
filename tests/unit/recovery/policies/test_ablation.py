"""A policy without one of its parts does what the part prevents."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perdure.recovery.job import AttemptView, NodeView, Recovery, TaskView
from perdure.recovery.market.cooldown import unavailable_after_launch, unavailable_after_preemption
from perdure.recovery.market.history import History, OfferObservation, StartupTimes, with_observation
from perdure.recovery.market.requirements import MachineRequirement
from perdure.recovery.market.unavailable import FaultKind
from perdure.recovery.market.view import Market, MarketView, Offer
from perdure.recovery.policies.ablation import PARTS, Ablated
from perdure.recovery.policies.decisions import Move, Place, Policy, Stay, Wait
from perdure.recovery.policies.registry import UnknownStrategy, get_policy
from perdure.recovery.statuses import AttemptState, TaskState

NOW = 1_000_000.0
HOUR = 3600.0
SPOT = Offer("aws", "east", "e1", "v", Market.SPOT, 1.0, 3.0, 8, 61)
STABLE = replace(SPOT, region="west", zone="w1", price_per_hour=1.05)
DEAR = replace(SPOT, region="west", zone="w1", price_per_hour=2.5)
CERTAIN = replace(SPOT, market=Market.ON_DEMAND, price_per_hour=3.0)
TASK = TaskView(
    0,
    (MachineRequirement(),),
    recovery=Recovery("DEADLINE", deadline_at=NOW + 60 * HOUR, work_s=48 * HOUR),
    wake_at=NOW,
)
WHOLE = get_policy("DEADLINE")


def without(part: str) -> Policy:
    return get_policy(f"DEADLINE without {part}")


def running_on(offer: Offer) -> TaskView:
    attempt = AttemptView(1, AttemptState.RUNNING, offer, (NodeView(0),), NOW, NOW, NOW)
    return replace(TASK, attempts=(attempt,), state=TaskState.RUNNING, run_since=NOW, last_offer=offer)


def test_ablate__reserve_lets_slack_be_spent() -> None:
    late = replace(TASK, recovery=replace(TASK.recovery, deadline_at=NOW + 52 * HOUR))
    market = MarketView((SPOT, CERTAIN), (unavailable_after_launch(SPOT, NOW, kind=FaultKind.AVOID_ZONE),))
    assert WHOLE.choose(late, market, NOW) == Place(CERTAIN)
    assert isinstance(without("reserve").choose(late, market, NOW), Wait)


@pytest.mark.parametrize(("part", "here"), [("returns", CERTAIN), ("moves", DEAR)])
def test_ablate__forbids_moves(part: str, here: Offer) -> None:
    market = MarketView((SPOT, DEAR, CERTAIN))
    assert isinstance(WHOLE.reconsider(running_on(here), market, NOW), Move)
    assert isinstance(without(part).reconsider(running_on(here), market, NOW), Stay)


def test_ablate__cooldown_retries_preempted_offer() -> None:
    market = MarketView((SPOT, STABLE, CERTAIN), (unavailable_after_preemption(SPOT, NOW - 1),))
    assert WHOLE.choose(TASK, market, NOW) == Place(STABLE)
    assert without("cooldown").choose(TASK, market, NOW) == Place(SPOT)


@pytest.mark.parametrize("part", ["lives", "volatility"])
def test_ablate__ignores_losses_of_offers(part: str) -> None:
    history = History()
    for i in range(40):
        begun = NOW - 20 * HOUR + i * 1800
        history = with_observation(history, OfferObservation(SPOT.key, begun, available=True))
        history = with_observation(history, OfferObservation(SPOT.key, begun + 600, available=False, held_since=begun))
    market = MarketView(
        (SPOT, STABLE, CERTAIN), history=with_observation(history, OfferObservation(SPOT.key, NOW, available=True))
    )
    assert WHOLE.choose(TASK, market, NOW) == Place(STABLE)
    if part == "lives":
        assert without(part).choose(TASK, market, NOW) == Place(SPOT)
    else:
        ablated = without(part)
        assert isinstance(ablated, Ablated)
        lives = [history.life_s(SPOT.key, NOW) for history in (market.history, ablated._filtered(market).history)]
        assert lives[0] < lives[1]


def test_ablate__starts_ignores_observed_startup_times() -> None:
    tight = replace(TASK, recovery=replace(TASK.recovery, deadline_at=NOW + 49 * HOUR))
    starts = StartupTimes()
    for _ in range(50):
        starts = starts.plus(60.0)
    market = MarketView((SPOT, CERTAIN), history=History(startup_times=starts))
    assert WHOLE.choose(tight, market, NOW) == Place(SPOT)
    assert without("starts").choose(tight, market, NOW) == Place(CERTAIN)


def test_ablate__rejects_unknown_parts() -> None:
    assert all(without(part) != WHOLE for part in PARTS)
    with pytest.raises(UnknownStrategy, match="no part called 'wheels'; choose one of reserve, returns, moves"):
        get_policy("DEADLINE without wheels")
    with pytest.raises(UnknownStrategy, match="CHEAPEST has no part called 'reserve'"):
        get_policy("CHEAPEST without reserve")
