"""A service on small markets: what is counted as available, and what costs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perdure.recovery.market.services.spec import ReplicaPolicy
from perdure.recovery.simulate.services import (
    ONE_ZONE,
    SPOTHEDGE,
    SPREAD,
    ServiceResult,
    ServiceScenario,
    simulate_service,
)
from unit.recovery.simulate.markets import GAP_S, make_zone

ALWAYS = ReplicaPolicy(min_replicas=2)
FALLBACK = replace(ALWAYS, ondemand_fallback=True)


def result(*patterns: str, policy: ReplicaPolicy = ALWAYS, **more: object) -> ServiceResult:
    zones = tuple(make_zone(pattern, name=f"east-1{'abc'[i]}") for i, pattern in enumerate(patterns))
    settings = {"length_s": len(patterns[0]) * GAP_S, "cold_start_s": 60.0, "notice_s": 0.0, **more}
    return simulate_service(ServiceScenario(zones, policy, **settings))  # type: ignore[arg-type]


def test_service__costs_what_its_machines_cost() -> None:
    spot = result("1" * 60)
    assert spot.cost_ratio == pytest.approx(1 / 3)
    assert (spot.preemptions, spot.available) == (0, pytest.approx(1 - 60 / (60 * GAP_S)))
    assert result("1" * 60, uses_spot=False).cost_ratio == pytest.approx(1.0)


def test_service__in_one_zone_is_away_while_the_zone_is() -> None:
    away = result("1" * 30 + "0" * 30, placement=ONE_ZONE)
    assert away.preemptions == 2
    assert away.answered == pytest.approx(0.5, abs=0.01)
    assert away.cost_ratio == pytest.approx(1 / 6, abs=0.01)


@pytest.mark.parametrize("placement", [SPREAD, SPOTHEDGE])
def test_service__falls_back_to_on_demand_machines(placement: str) -> None:
    both = result("1" * 30 + "0" * 30, "1" * 30 + "0" * 30, policy=FALLBACK, placement=placement)
    assert both.available > 0.98
    assert both.cost_ratio == pytest.approx((1 / 3 + 1) / 2, abs=0.03)


@pytest.mark.parametrize("placement", [SPREAD, SPOTHEDGE])
def test_service__spread_over_zones_loses_one_replica_at_a_time(placement: str) -> None:
    spread = result("1" * 30 + "0" * 30, "1" * 60, "1" * 60, placement=placement)
    assert spread.preemptions == 1
    assert spread.answered > 0.99


def test_notice__gives_time_to_replace_a_replica() -> None:
    zones = ("1" * 30 + "0" * 30, "1" * 60)
    with_notice, without = result(*zones, notice_s=120.0), result(*zones)
    assert with_notice.available > without.available
