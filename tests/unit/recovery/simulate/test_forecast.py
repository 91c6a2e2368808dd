"""Forecasts: the simulator's world on random markets."""

from __future__ import annotations

from itertools import islice
from random import Random
from statistics import mean, stdev

import pytest

from perdure.recovery.job import Recovery, TaskView
from perdure.recovery.market.history import History, OfferObservation, with_observation
from perdure.recovery.market.offers import Market, Offer
from perdure.recovery.market.requirements import MachineRequirement
from perdure.recovery.market.unavailable import FaultKind, UnavailableOffer
from perdure.recovery.market.view import MarketView
from perdure.recovery.simulate import Run
from perdure.recovery.simulate.forecast import Forecast, _Laws, draw_runs, summarize_runs

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


def forecast_of(
    market: MarketView,
    *,
    strategy: str = "CHEAPEST",
    work_h: float = 5.0,
    deadline_h: float | None = None,
    requirements: tuple[MachineRequirement, ...] = (MachineRequirement(),),
    seed: int = 0,
) -> Forecast:
    deadline_at = None if deadline_h is None else NOW + deadline_h * HOUR_S
    recovery = Recovery(strategy, work_s=work_h * HOUR_S, deadline_at=deadline_at)
    runs = list(islice(draw_runs(TaskView(0, requirements, recovery=recovery), market, NOW, seed=seed), RUNS))
    return summarize_runs(runs, None if deadline_h is None else deadline_h * HOUR_S)


def test_forecast__of_on_demand_matches_price() -> None:
    forecast = forecast_of(MarketView(MARKET), requirements=(MachineRequirement(use_spot=False),))
    assert forecast.preemptions == 0
    assert forecast.cost.mean == pytest.approx(3.0 * (5 + 780 / HOUR_S), rel=0.05)
    assert forecast.seconds is not None
    assert forecast.seconds.mean >= 5 * HOUR_S


def test_forecast__of_spot_is_cheaper_and_later() -> None:
    forecast = forecast_of(MarketView(MARKET))
    assert forecast.cost.low < forecast.cost.mean < forecast.cost.high < 15
    assert forecast.preemptions > 0
    assert forecast.seconds is not None
    assert forecast.seconds.high > forecast.seconds.low > 5 * HOUR_S


def test_forecast__is_deterministic_per_seed() -> None:
    one, repeated, other = (forecast_of(MarketView(MARKET), work_h=1.0, seed=seed) for seed in (7, 7, 8))
    assert one == repeated != other


def test_forecast__uses_history() -> None:
    """Zones that lose machines frequently cause more preemptions."""
    history = History()
    for o in MARKET:
        for i in range(12 if o.market is Market.SPOT else 0):
            at = NOW - (13 - i) * 1200
            history = with_observation(history, OfferObservation(o.key, at, available=True))
            history = with_observation(history, OfferObservation(o.key, at + 600, available=False, held_since=at))
    before, after = (forecast_of(MarketView(MARKET, history=h), work_h=3.0) for h in (History(), history))
    assert after.preemptions > 1.2 * before.preemptions


def test_forecast__starts_without_unavailable_offers() -> None:
    refused = tuple(
        UnavailableOffer("c", NOW + 600, FaultKind.AVOID_ZONE, NOW, o.region, o.zone, o.instance_type, o.market)
        for o in MARKET
        if o.market is Market.SPOT
    )
    recovery = Recovery("CHEAPEST", work_s=HOUR_S)
    for run in islice(
        draw_runs(TaskView(0, (MachineRequirement(),), recovery=recovery), MarketView(MARKET, refused), NOW), 5
    ):
        assert min(stay.launched_at for stay in run.stays) > NOW


def seen_away(for_s: float) -> MarketView:
    """All spot offers were refused for so long, most recently a minute ago."""
    history = History()
    for o in MARKET:
        for at in (NOW - for_s, NOW - 60) if o.market is Market.SPOT else ():
            history = with_observation(history, OfferObservation(o.key, at, available=False))
    return MarketView(MARKET, history=history)


def test_forecast__offers_that_are_away_for_long_stay_away_longer() -> None:
    first_starts = []
    for for_s in (120.0, 20 * HOUR_S):
        task = TaskView(0, (MachineRequirement(),), recovery=Recovery("CHEAPEST", work_s=HOUR_S))
        runs = islice(draw_runs(task, seen_away(for_s), NOW), 12)
        first_starts.append(mean(min((s.launched_at for s in run.stays), default=NOW + 40 * HOUR_S) for run in runs))
    assert first_starts[1] - NOW > 2 * (first_starts[0] - NOW) > 0


def test_forecast__draws_volatility_around_what_is_known() -> None:
    history, key = History(), MARKET[0].key
    for i in range(12):
        at = NOW - (20 - i) * HOUR_S
        history = with_observation(history, OfferObservation(key, at, available=True))
        history = with_observation(history, OfferObservation(key, at + 600, available=False, held_since=at))
    market, random = MarketView(MARKET, history=history), Random(3)
    drawn = [_Laws(market, NOW, random).volatility(key) for _ in range(1000)]
    assert mean(drawn) == pytest.approx(history.volatility(key, NOW), rel=0.05)
    assert 0.15 < stdev(drawn) / mean(drawn) < 0.5


@pytest.mark.parametrize(("runs", "low", "high"), [(40, 3, 36), (99, 9, 89), (4, 0, 3)])
def test_summarize_runs__a_tenth_of_further_runs_lie_below_and_above(runs: int, low: int, high: int) -> None:
    """Of 40 runs and another one, each place in their order is equally likely for the other one."""
    results = [Run(NOW, float(i), float(i), {market: 0.0 for market in Market}) for i in range(runs)]
    cost = summarize_runs(results, None).cost
    assert (cost.low, cost.high) == (low, high)


def test_forecast__impossible_deadline_is_missed_in_every_run() -> None:
    assert forecast_of(MarketView(MARKET), strategy="DEADLINE", deadline_h=4.0).late == 1.0
    assert forecast_of(MarketView(MARKET), strategy="DEADLINE", deadline_h=8.0).late == 0.0


def test_forecast__keeps_ranks() -> None:
    """The requirement of rank 0 is used first, however expensive."""
    requirements = (MachineRequirement(zone="r-b", rank=0), MachineRequirement(zone="r-a", rank=1))
    recovery = Recovery("CHEAPEST", work_s=HOUR_S)
    reliable = History()
    for o in MARKET:
        reliable = with_observation(reliable, OfferObservation(o.key, NOW, available=True, held_since=NOW - 3e6))
    first = next(
        iter(draw_runs(TaskView(0, requirements, recovery=recovery), MarketView(MARKET, history=reliable), NOW))
    )
    assert first.stays[0].zone == 0
    assert first.cost < 1.2 * 1.5
