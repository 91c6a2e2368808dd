"""Forecasts: the simulator's world with markets drawn from what is known."""

from __future__ import annotations

from itertools import islice

import pytest

from perdure.recovery.history import History, Sighting, learn
from perdure.recovery.job import Recovery, TaskView
from perdure.recovery.market import FaultKind, MarketView, Refusal
from perdure.recovery.needs import Need
from perdure.recovery.offers import Market, Offer
from perdure.recovery.simulate.forecast import Forecast, draws, summary

NOW = 1_800_000_000.0
HOUR_S = 3600.0
RUNS = 8


def offer(zone: str, price: float, *, market: Market = Market.SPOT, region: str = "r") -> Offer:
    return Offer("c", region, zone, "big", market, price, 3.0, 8, 61)


MARKET = tuple(
    offer(zone, price if market is Market.SPOT else 3.0, market=market)
    for zone, price in (("r-a", 1.0), ("r-b", 1.2))
    for market in Market
)


def foreseen(market: MarketView, *, strategy: str = "CHEAPEST", work_h: float = 5.0, deadline_h: float | None = None,
             needs: tuple[Need, ...] = (Need(),), seed: int = 0) -> Forecast:  # fmt: skip
    deadline_at = None if deadline_h is None else NOW + deadline_h * HOUR_S
    asked = Recovery(strategy, work_s=work_h * HOUR_S, deadline_at=deadline_at)
    runs = list(islice(draws(TaskView(0, needs, recovery=asked), market, NOW, seed=seed), RUNS))
    return summary(runs, None if deadline_h is None else deadline_h * HOUR_S)


def test_on_demand_costs_what_its_price_says() -> None:
    found = foreseen(MarketView(MARKET), needs=(Need(use_spot=False),))
    assert found.preemptions == 0
    assert found.cost.mean == pytest.approx(3.0 * (5 + 780 / HOUR_S), rel=0.05)
    assert found.seconds is not None
    assert found.seconds.mean >= 5 * HOUR_S


def test_spot_is_cheaper_and_later_and_uncertain() -> None:
    found = foreseen(MarketView(MARKET))
    assert found.cost.low < found.cost.mean < found.cost.high < 15
    assert found.preemptions > 0
    assert found.seconds is not None
    assert found.seconds.high > found.seconds.low > 5 * HOUR_S


def test_the_same_seed_foresees_the_same() -> None:
    one, again, other = (foreseen(MarketView(MARKET), work_h=1.0, seed=seed) for seed in (7, 7, 8))
    assert one == again != other


def test_what_was_learned_changes_it() -> None:
    """Zones that lose machine after machine make for a dearer and later end."""
    history = History()
    for o in MARKET:
        for i in range(12 if o.market is Market.SPOT else 0):
            at = NOW - (13 - i) * 1200
            history = learn(history, Sighting(o.key, at, available=True))
            history = learn(history, Sighting(o.key, at + 600, available=False, held_since=at))
    before, after = (foreseen(MarketView(MARKET, history=h), work_h=3.0) for h in (History(), history))
    assert after.preemptions > 1.2 * before.preemptions


def test_an_offer_that_is_refused_now_is_not_there_at_the_start() -> None:
    refused = tuple(
        Refusal("c", NOW + 600, FaultKind.AVOID_ZONE, NOW, o.region, o.zone, o.instance_type, o.market)
        for o in MARKET
        if o.market is Market.SPOT
    )
    asked = Recovery("CHEAPEST", work_s=HOUR_S)
    for run in islice(draws(TaskView(0, (Need(),), recovery=asked), MarketView(MARKET, refused), NOW), 5):
        assert min(stay.launched_at for stay in run.stays) > NOW


def test_a_deadline_that_no_machine_can_keep_is_missed_in_every_run() -> None:
    assert foreseen(MarketView(MARKET), strategy="DEADLINE", deadline_h=4.0).late == 1.0
    assert foreseen(MarketView(MARKET), strategy="DEADLINE", deadline_h=8.0).late == 0.0


def test_the_users_order_is_kept() -> None:
    """What is asked for first is used first, however dear."""
    needs = (Need(zone="r-b", rank=0), Need(zone="r-a", rank=1))
    asked = Recovery("CHEAPEST", work_s=HOUR_S)
    always = History()
    for o in MARKET:
        always = learn(always, Sighting(o.key, NOW, available=True, held_since=NOW - 3e6))
    first = next(iter(draws(TaskView(0, needs, recovery=asked), MarketView(MARKET, history=always), NOW)))
    assert first.stays[0].zone == 0
    assert first.cost < 1.2 * 1.5
