"""The daemon's decisions in a recorded world: what is launched, refused, taken, lost and billed."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.recovery.market import FaultKind
from perdure.recovery.offers import Market
from perdure.recovery.policies.cooldown import COOLDOWNS, EARLY_RETRY_S
from perdure.recovery.policies.registry import STRATEGIES
from perdure.recovery.simulate import Run, Scenario, ZoneTrace, baselines
from perdure.recovery.simulate.cloud import TraceCloud
from perdure.recovery.simulate.optimum import optimum
from perdure.recovery.simulate.world import World

HOUR = 3600


def run(*zones: ZoneTrace, strategy: str = "CHEAPEST", **more) -> Run:
    more = {"use_on_demand": False, "cold_start_s": 600, **more}
    return World(TraceCloud(Scenario(zones, **more)), strategy, 0.0, keep_notes=True).run()


def test_a_run_without_interruption_costs_its_start_and_its_work(zone) -> None:
    found = run(zone("1" * 12, price=6.0), work_s=3000)
    assert (found.cost, found.finish_s, found.launches) == (pytest.approx(6.0), 3600, 1)
    assert found.hours == {Market.SPOT: 1.0, Market.ON_DEMAND: 0.0}


def test_a_zone_that_has_given_notice_sells_no_more(zone) -> None:
    found = run(zone("11110" + "1" * 30), work_s=6000, notice_s=120)
    assert found.stays[0].ended_at == 2400 - 120
    assert found.stays[1].launched_at >= 3000


def test_prices_are_those_of_the_moment(zone) -> None:
    prices = (6.0,) * 3 + (12.0,) * 9
    assert run(zone("1" * 12, price=prices), work_s=3000).cost == pytest.approx(3.0 + 6.0)


@pytest.mark.parametrize(
    ("checkpoint_every_s", "notice_s", "lost_s"),
    [(0, 0, 0), (1000, 0, 2400 % 1000), (1800, 0, 600), (9000, 0, 2400), (9000, 120, 0)],
)
def test_a_preemption_loses_what_no_checkpoint_has(zone, checkpoint_every_s, notice_s, lost_s) -> None:
    """Work runs from 600 to the loss at 3000; a notice makes it save, and leave early."""
    found = run(zone("111110" + "1" * 30), work_s=6000, checkpoint_every_s=checkpoint_every_s, notice_s=notice_s)
    assert found.preemptions == 1
    assert found.lost_s == lost_s
    second = found.stays[1]
    done_s = 2400 - lost_s - notice_s
    assert found.finish_s == second.running_at + 6000 - done_s


def test_what_is_lost_while_starting_is_billed_and_did_nothing(zone) -> None:
    found = run(zone("100" + "1" * 9), work_s=600, cold_start_s=900)
    first = found.stays[0]
    assert (first.launched_at, first.ended_at, first.running_at) == (0.0, 600.0, None)
    assert found.lost_s == 0
    assert found.cost == pytest.approx((600 + 900 + 600) / HOUR)


def test_refusals_cool_down_as_in_the_daemon(zone) -> None:
    """Nothing for two hours: tries follow the table of cool-downs, not the trace's ticks."""
    found = run(zone("0" * 12 + "1" * 12), work_s=600)
    tries = [float(line.split(" ")[0]) for line in found.notes if "attempt.requested" in line]
    gaps = [b - a for a, b in pairwise(tries)]
    table = COOLDOWNS[FaultKind.AVOID_ZONE]
    assert gaps[:4] == [table.first_s, 2 * table.first_s, table.most_s, table.most_s]
    assert found.refused == len(tries) - 1
    assert found.stays[0].launched_at >= 7200


def test_a_zone_that_took_a_machine_back_is_the_last_resort_for_a_minute(zone) -> None:
    found = run(zone("1110" + "1" * 20), work_s=3600)
    assert found.stays[1].launched_at >= 2400
    assert found.stays[1].launched_at - 1800 >= EARLY_RETRY_S


def test_several_machines_come_and_go_together(zone) -> None:
    """Two needed: one is not enough to begin, and losing one is losing both."""
    found = run(zone("1222122222222222"), work_s=3000, num_nodes=2)
    first, second = found.stays
    assert first.launched_at >= 600
    assert first.ended_at == 2400
    assert second.launched_at >= 3000
    billed_s = sum(s.ended_at - s.launched_at for s in found.stays)
    assert found.cost == pytest.approx(2 * billed_s / HOUR)
    assert found.hours[Market.SPOT] == pytest.approx(2 * billed_s / HOUR)


def test_a_gang_that_lost_a_part_is_billed_until_the_rest_is_let_go(zone) -> None:
    """Three needed, one taken: what the others had done since the last checkpoint is lost with it."""
    found = run(zone("3333" + "2" * 4 + "3" * 20), work_s=6000, num_nodes=3, checkpoint_every_s=900)
    first, second = found.stays
    assert (first.ended_at, second.launched_at >= 4800) == (2400, True)
    assert found.lost_s == (2400 - 600) % 900 or found.lost_s == 900
    assert found.preemptions == 1


def test_a_replacement_beside_what_runs_needs_room_in_the_quota(zone) -> None:
    """One region's dear zone is bought while the cheap one is away; going back takes a second machine for a while."""
    zones = zone("0" * 6 + "1" * 60), zone("1" * 66, name="east-1b", price=2.5)
    moved = [run(*zones, strategy="VALUE", work_s=18000, quota=quota) for quota in (0, 2, 1)]
    assert [len(r.stays) for r in moved] == [2, 2, 1]
    assert "quota used up" in " ".join(moved[2].notes)
    elsewhere = zones[0], zone("1" * 66, name="west-1b", price=2.5)
    assert len(run(*elsewhere, strategy="VALUE", work_s=18000, quota=1).stays) == 2


def test_a_quota_below_the_gang_sells_nothing(zone) -> None:
    found = run(zone("2" * 20), work_s=600, num_nodes=2, quota=1)
    assert (found.stays, found.cost, found.finish_s) == ((), 0, None)


def test_a_price_that_falls_elsewhere_is_moved_to_and_one_that_rises_is_left(zone) -> None:
    prices = (1.0,) * 10 + (2.8,) * 50
    zones = zone("1" * 60, price=prices), zone("1" * 60, name="east-1b", price=1.5)
    first, second = run(*zones, strategy="VALUE", work_s=18000).stays
    assert (first.zone, second.zone) == (0, 1)
    assert 6000 <= second.launched_at <= 6600
    assert first.ended_at == second.running_at, "it works on until the other one is ready"


def test_carrying_the_checkpoint_to_another_region_is_paid_for(zone) -> None:
    zones = zone("1110000000", price=1.0), zone("1111111111", name="west-1a", price=2.0)
    costs = [run(*zones, work_s=2400, egress_per_gb=gb, checkpoint_gb=10.0).cost for gb in (0.0, 0.1)]
    assert costs[1] == pytest.approx(costs[0] + 1.0)


def test_a_run_that_the_traces_outlive_is_not_done(zone) -> None:
    found = run(zone("111111"), work_s=9000)
    assert found.finish_s is None
    assert found.is_late(9600)
    assert found.cost == pytest.approx(1.0)


def test_a_controller_that_has_seen_machines_start_knows_how_long_it_takes(zone) -> None:
    """Of the slack, the first job of a new controller keeps as much as a start might take for all that it knows."""
    scenario = Scenario((zone("1" * 60),), work_s=18000, deadline_s=21000, cold_start_s=300)
    experienced = World(TraceCloud(scenario), "DEADLINE", 6000.0).run()
    new = World(TraceCloud(replace(scenario, seen_starts=0)), "DEADLINE", 6000.0).run()
    assert (experienced.hours[Market.ON_DEMAND], new.hours[Market.SPOT]) == (0, 0)


@st.composite
def markets(draw: st.DrawFn) -> Scenario:
    ticks = 40
    zones = []
    for name in ["east-1a", "east-1b", "west-1a"][: draw(st.integers(1, 3))]:
        lengths = draw(st.lists(st.integers(1, 9), min_size=ticks, max_size=ticks))
        counts = [i % 2 for i, length in enumerate(lengths) for _ in range(length)][:ticks]
        price = draw(st.sampled_from([1.0, 1.5, 2.0]))
        zones.append(ZoneTrace(name, name[:-1], "m", 0.0, 600, tuple(counts), (price,) * ticks, 3.0))
    work_s = 600 * draw(st.integers(1, 12))
    cold_start_s = draw(st.sampled_from([300, 600, 900]))
    return Scenario(
        tuple(zones),
        work_s=work_s,
        deadline_s=work_s + 3 * cold_start_s + 1800 + 600 * draw(st.integers(0, 10)),
        cold_start_s=cold_start_s,
        cold_start_sigma=draw(st.sampled_from([0.0, 0.0, 0.5])),
        checkpoint_every_s=draw(st.sampled_from([0, 900])),
        notice_s=draw(st.sampled_from([0, 120])),
        egress_per_gb=draw(st.sampled_from([0.0, 0.01])),
        checkpoint_gb=10.0,
    )


# Of these, none starts a replacement while the work goes on: the optimum's rules are theirs.
ONE_AT_A_TIME = [s for s in STRATEGIES if s in ("CHEAPEST", "FAILOVER", "EAGER_NEXT_REGION")]
PLAYERS = [
    *(lambda c, s=s: World(c, s, 0.0).run() for s in ONE_AT_A_TIME),
    *(lambda c, b=b: b(c, 0.0) for b in (baselines.on_demand, baselines.greedy, baselines.uniform_progress)),
]


@settings(max_examples=100, deadline=None)
@given(markets(), st.sampled_from(range(len(PLAYERS))))
def test_nobody_beats_the_optimum(scenario: Scenario, player: int) -> None:
    cloud = TraceCloud(scenario)
    found = PLAYERS[player](cloud)
    if found.finish_s is not None:
        assert found.cost >= optimum(cloud, 0.0, found.finish_s) - 1e-6


@settings(max_examples=100, deadline=None)
@given(markets(), st.sampled_from([baselines.greedy, baselines.uniform_progress]))
def test_the_published_policies_are_never_late(scenario: Scenario, baseline) -> None:
    cloud = TraceCloud(scenario)
    roomy = 2 * scenario.worst_cold_start_s + scenario.tick_s + scenario.work_s
    if scenario.deadline_s >= roomy:
        assert not baseline(cloud, 0.0).is_late(scenario.deadline_s)


@settings(max_examples=150, deadline=None)
@given(markets(), st.sampled_from([baselines.greedy, baselines.uniform_progress, baselines.lifetime_oracle]))
def test_the_published_policies_do_the_same_where_they_look_at_every_tick(scenario: Scenario, baseline) -> None:
    cloud = TraceCloud(scenario)
    for at in (0.0, 1200.0):
        assert baseline(cloud, at) == baseline(cloud, at, skips=False)
