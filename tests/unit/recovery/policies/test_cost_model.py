"""The cost model's limits, and the price of slack."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perdure.recovery.frozen import dataclass
from perdure.recovery.job import Recovery, TaskView
from perdure.recovery.market.history import History
from perdure.recovery.market.requirements import MachineRequirement
from perdure.recovery.market.view import Market, Offer, OfferKey
from perdure.recovery.policies.cost_model import CostModel, price_of_slack

HOUR = 3600.0
SPOT = Offer("aws", "east", "e1", "v", Market.SPOT, 1.0, 3.0, 8, 61)
STABLE = replace(SPOT, zone="e2", price_per_hour=2.0)


@dataclass(frozen=True)
class KnownLives(History):
    """Cheap machines last for 2 h, others for 10 h."""

    def life_s(self, key: OfferKey, _now: float, /) -> float:
        return 2 * HOUR if key == SPOT.key else 10 * HOUR


def test_costs__of_endless_work_are_those_of_one_life() -> None:
    """A workload may report as many steps as a machine word holds, which takes longer than anything lasts."""
    task = TaskView(0, (MachineRequirement(),), recovery=Recovery(work_s=2.0**63 * 10))
    costs = CostModel(task, History(), 0.0)
    assert costs.stay_s(SPOT) == pytest.approx(History().life_s(SPOT.key, 0.0))
    assert costs.hourly_cost(SPOT) < costs.total_cost(SPOT) * 2


def costs_of(history: History, **changes: object) -> CostModel:
    task = TaskView(0, (MachineRequirement(),), recovery=Recovery(work_s=48 * HOUR), **changes)  # type: ignore[arg-type]
    return CostModel(task, history, 0.0)


def test_slack_share__counts_starts_and_work_that_losses_undid() -> None:
    costs = costs_of(KnownLives())
    start_s = costs.history.startup_times.mean_s
    assert costs.slack_share(SPOT) == pytest.approx(start_s / (2 * HOUR))
    rough = costs_of(KnownLives(), run_seconds=10 * HOUR, saved_s=8 * HOUR, recovery_count=4)
    assert rough.slack_share(SPOT) == pytest.approx((start_s + HOUR / 2) / (2 * HOUR))
    assert costs.slack_share(replace(SPOT, market=Market.ON_DEMAND)) == 0


def test_price_of_slack__is_what_more_of_it_would_save() -> None:
    """On-demand costs $3 and no slack, the stable zone $2 and little of it, the volatile one $1 and five times that."""
    costs = costs_of(KnownLives())
    stable, volatile = costs.slack_share(STABLE), costs.slack_share(SPOT)
    assert volatile == pytest.approx(5 * stable)
    prices = [
        price_of_slack(costs, [SPOT, STABLE], 3.0, share * 48 * HOUR)
        for share in (0.0, 0.99 * stable, 1.01 * stable, 0.99 * volatile, 1.01 * volatile)
    ]
    to_stable, to_volatile = (3 - 2) / stable, (2 - 1) / (volatile - stable)
    assert prices == pytest.approx([to_stable, to_stable, to_volatile, to_volatile, 0])
    assert price_of_slack(costs, [SPOT, STABLE], 3.0, -60.0) == pytest.approx(to_stable)


def test_price_of_slack__ignores_offers_that_are_worse_in_both_respects() -> None:
    costs = costs_of(KnownLives())
    dear = replace(SPOT, price_per_hour=2.9)
    share_s = 0.5 * costs.slack_share(STABLE) * 48 * HOUR
    assert price_of_slack(costs, [dear, STABLE], 3.0, share_s) == price_of_slack(costs, [STABLE], 3.0, share_s)
    assert price_of_slack(costs, [], 3.0, share_s) == 0


def test_costs__include_the_slack_that_losses_cost() -> None:
    costs = costs_of(KnownLives())
    assert costs.total_cost(SPOT) < costs.total_cost(STABLE)
    scarce = replace(costs, slack_price=20.0)
    assert scarce.total_cost(SPOT) == pytest.approx(costs.total_cost(SPOT) + 20 * costs.slack_share(SPOT))
    assert scarce.hourly_cost(STABLE) == pytest.approx(costs.hourly_cost(STABLE) + 20 * costs.slack_share(STABLE))
    assert scarce.total_cost(SPOT) > scarce.total_cost(STABLE)
