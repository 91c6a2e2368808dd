"""The optimum against exhaustive search, and in simple cases."""

from __future__ import annotations

from functools import cache
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.recovery.market.offers import Market
from perdure.recovery.simulate import Scenario, ZoneTrace
from perdure.recovery.simulate.cloud import TraceCloud
from perdure.recovery.simulate.optimum import GridTooFine, fastest, optimum
from unit.recovery.simulate.markets import MakeZone

Place = tuple[int, Market]
Machine = tuple[Place | None, int]  # seconds of its start that are left


UNIT_S = 100


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    """Up to 3 zones in 2 regions, with ticks of 3 units; durations are multiples of units, not of ticks."""
    ticks = draw(st.integers(3, 5))
    zones = [
        ZoneTrace(
            name,
            name[:-1],
            "m",
            0.0,
            3 * UNIT_S,
            tuple(draw(st.lists(st.integers(0, 2), min_size=ticks, max_size=ticks))),
            tuple(draw(st.lists(st.sampled_from([1.0, 1.5, 2.5]), min_size=ticks, max_size=ticks))),
            draw(st.sampled_from([3.0, 4.0])),
        )
        for name in ["east-1a", "east-1b", "west-1a"][: draw(st.integers(1, 3))]
    ]
    deadline = draw(st.integers(3, 3 * ticks))
    return Scenario(
        tuple(zones),
        work_s=draw(st.integers(1, deadline)) * UNIT_S,
        deadline_s=deadline * UNIT_S,
        cold_start_s=draw(st.integers(1, 4)) * UNIT_S,
        cold_start_sigma=draw(st.sampled_from([0.0, 0.0, 0.5])),
        num_nodes=draw(st.integers(1, 2)),
        egress_per_gb=draw(st.sampled_from([0.0, 0.02])),
        checkpoint_gb=1.0,
        use_on_demand=draw(st.booleans()),
    )


@settings(max_examples=150, deadline=None)
@given(scenarios())
def test_optimum__equals_exhaustive_search(scenario: Scenario) -> None:
    cloud = TraceCloud(scenario)
    assert scenario.deadline_s is not None
    assert optimum(cloud, 0.0, scenario.deadline_s) == pytest.approx(exhaustive_cost(cloud, scenario.deadline_s))


@settings(max_examples=100, deadline=None)
@given(scenarios())
def test_fastest__is_shortest_feasible_deadline(scenario: Scenario) -> None:
    cloud = TraceCloud(scenario)
    result = fastest(cloud, 0.0)
    ends = [s for s in range(0, int(scenario.span[1]) + 1, scenario.grid_s) if optimum(cloud, 0.0, s) < inf]
    assert result == (min(ends) if ends else None)


def exhaustive_cost(cloud: TraceCloud, deadline_s: int) -> float:
    """Tries every sequence of places, in steps of one unit, with real start-ups."""
    scenario = cloud.scenario
    zones = range(len(scenario.zones))
    usable = [(z, m) for z in zones for m in Market if scenario.use_on_demand or m is Market.SPOT]

    @cache
    def least(now: int, place: tuple[int, Market] | None, starting: int, left: int, region: str | None) -> float:
        if left == 0:
            return 0.0
        if now + starting + left > deadline_s:
            return inf
        result = least(now + UNIT_S, None, 0, left, region)
        for there in usable:
            if not cloud.has_capacity(*there, now):
                continue
            home = scenario.zones[there[0]].region
            cost = cloud.bill(*there, now, now + UNIT_S)
            launches = [(True, round(cloud.cold_start_s(*there, now)))]
            if now > 0 and cloud.has_capacity(
                *there, now - 1
            ):  # a launch a moment earlier costs the same, and may start faster
                launches.append((True, round(cloud.cold_start_s(*there, now - 1))))
            launches += [(False, starting)] if there == place else []
            for is_new, start_s in launches:
                moved = scenario.move_cost if is_new and region not in (None, home) else 0.0
                if start_s:
                    after = least(now + UNIT_S, there, start_s - UNIT_S, left, home)
                else:
                    after = least(now + UNIT_S, there, 0, left - UNIT_S, home)
                result = min(result, cost + moved + after)
        return result

    return least(0, None, 0, scenario.work_s, None)


SMALL = scenarios().filter(lambda s: not s.cold_start_sigma and len(s.zones) < 3)


@settings(max_examples=15, deadline=None)
@given(SMALL)
def test_optimum__with_overlap_equals_exhaustive_search(scenario: Scenario) -> None:
    require_least_cost(scenario)


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(SMALL)
def test_optimum__with_overlap_equals_exhaustive_search_in_more_cases(scenario: Scenario) -> None:
    require_least_cost(scenario)


def require_least_cost(scenario: Scenario) -> None:
    cloud = TraceCloud(scenario)
    assert scenario.deadline_s is not None
    result = optimum(cloud, 0.0, scenario.deadline_s, overlap=True)
    assert result == pytest.approx(least_with_overlap(cloud, scenario.deadline_s))


def least_with_overlap(cloud: TraceCloud, deadline_s: int) -> float:
    """As `exhaustive_cost`, but one more machine may be started at any time, and used later."""
    scenario = cloud.scenario
    zones = range(len(scenario.zones))
    usable = [(z, m) for z in zones for m in Market if scenario.use_on_demand or m is Market.SPOT]
    idle: Machine = (None, 0)

    def launches(now: int) -> list[Machine]:
        return [(there, round(cloud.cold_start_s(*there, now))) for there in usable if cloud.has_capacity(*there, now)]

    def home(machine: Machine) -> str:
        place, _ = machine
        assert place is not None
        return scenario.zones[place[0]].region

    def after(now: int, machine: Machine) -> Machine:
        place, start_s = machine
        return idle if place is None else (place, max(0, start_s - UNIT_S))

    @cache
    def least(now: int, main: Machine, spare: Machine, left: int, region: str | None) -> float:
        """`main`, `spare`: (place, seconds of start left) at `now`, before any decision."""
        if left == 0:
            return 0.0
        if now + left > deadline_s:
            return inf
        kept = [m for m in (main,) if m[0] is not None and cloud.has_capacity(*m[0], now)]
        spares = [m for m in (spare,) if m[0] is not None and cloud.has_capacity(*m[0], now)]
        result = inf
        for mine in [idle, *kept, *spares, *launches(now)]:
            is_new = mine[0] is not None and not (mine in kept and mine == main)
            moved = scenario.move_cost if is_new and region not in (None, home(mine)) else 0.0
            others = [idle] if mine[0] is None else [idle, *(spares if mine not in spares else []), *launches(now)]
            for other in others:
                bills = sum(cloud.bill(*place, now, now + UNIT_S) for place, _ in (mine, other) if place is not None)
                works = mine[0] is not None and mine[1] == 0
                where = region if mine[0] is None else home(mine)
                then = least(now + UNIT_S, after(now, mine), after(now, other), left - UNIT_S * works, where)
                result = min(result, bills + moved + then)
        return result

    return least(0, idle, idle, scenario.work_s, None)


def test_optimum__waits_for_spot(zone: MakeZone) -> None:
    cloud = TraceCloud(Scenario((zone("000111"),), work_s=1200, deadline_s=3600, cold_start_s=600))
    assert optimum(cloud, 0.0, 3600) == pytest.approx(1.0 * 1800 / 3600)
    bridged = 3.0 * 1200 / 3600 + 1.0 * 1200 / 3600  # on-demand until spot is available, which then starts up as well
    assert optimum(cloud, 0.0, 3000) == pytest.approx(bridged)
    assert optimum(cloud, 0.0, 2400) == pytest.approx(3.0 * 1800 / 3600)
    assert optimum(cloud, 0.0, 1200) == inf


def test_optimum__rejects_too_fine_grid(zone: MakeZone) -> None:
    cloud = TraceCloud(Scenario((zone("1" * 600),), work_s=172_801, deadline_s=350_000, cold_start_s=7))
    with pytest.raises(GridTooFine, match="round them to whole minutes"):
        optimum(cloud, 0.0, 350_000)
