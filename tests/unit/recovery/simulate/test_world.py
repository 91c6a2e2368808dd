"""The controller's decisions on a recorded market: what is launched, refused, preempted, lost and billed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.recovery import events
from perdure.recovery.market.cooldown import COOLDOWNS, EARLY_RETRY_S
from perdure.recovery.market.offers import Market
from perdure.recovery.market.unavailable import FaultKind
from perdure.recovery.policies.registry import STRATEGIES
from perdure.recovery.simulate import Run, Scenario, ZoneTrace, baselines
from perdure.recovery.simulate.cloud import TraceCloud
from perdure.recovery.simulate.optimum import optimum
from perdure.recovery.simulate.world import World
from unit.recovery.simulate.markets import MakeZone

HOUR = 3600


def run(*zones: ZoneTrace, strategy: str = "CHEAPEST", **more: Any) -> Run:
    more = {"use_on_demand": False, "cold_start_s": 600, **more}
    return World(TraceCloud(Scenario(zones, **more)), strategy, 0.0, keep_timeline=True).run()


def test_world__uninterrupted_run_costs_start_and_work(zone: MakeZone) -> None:
    result = run(zone("1" * 12, price=6.0), work_s=3000)
    assert (result.cost, result.finish_s, result.launches) == (pytest.approx(6.0), 3600, 1)
    assert result.hours == {Market.SPOT: 1.0, Market.ON_DEMAND: 0.0}


def test_world__zone_refuses_launches_after_notice(zone: MakeZone) -> None:
    result = run(zone("11110" + "1" * 30), work_s=6000, notice_s=120)
    assert result.stays[0].ended_at == 2400 - 120
    assert result.stays[1].launched_at >= 3000


def test_world__bills_at_current_price(zone: MakeZone) -> None:
    prices = (6.0,) * 3 + (12.0,) * 9
    assert run(zone("1" * 12, price=prices), work_s=3000).cost == pytest.approx(3.0 + 6.0)


@pytest.mark.parametrize(
    ("checkpoint_every_s", "notice_s", "lost_s"),
    [(0, 0, 0), (1000, 0, 2400 % 1000), (1800, 0, 600), (9000, 0, 2400), (9000, 120, 0)],
)
def test_world__preemption_loses_work_since_checkpoint(
    zone: MakeZone, checkpoint_every_s: int, notice_s: int, lost_s: int
) -> None:
    """Work runs from 600 to the loss at 3000; on a notice the job saves and leaves early."""
    result = run(zone("111110" + "1" * 30), work_s=6000, checkpoint_every_s=checkpoint_every_s, notice_s=notice_s)
    assert result.preemptions == 1
    assert result.lost_s == lost_s
    second = result.stays[1]
    done_s = 2400 - lost_s - notice_s
    assert result.finish_s == second.running_at + 6000 - done_s


def test_world__loss_during_start_is_billed(zone: MakeZone) -> None:
    result = run(zone("100" + "1" * 9), work_s=600, cold_start_s=900)
    first = result.stays[0]
    assert (first.launched_at, first.ended_at, first.running_at) == (0.0, 600.0, None)
    assert result.lost_s == 0
    assert result.cost == pytest.approx((600 + 900 + 600) / HOUR)


def test_world__refused_launches_cool_down(zone: MakeZone) -> None:
    """No capacity for two hours: tries follow the table of cool-downs, not the trace's ticks."""
    result = run(zone("0" * 12 + "1" * 12), work_s=600)
    tries = [float(line.split(" ")[0]) for line in result.timeline if "attempt.requested" in line]
    gaps = [b - a for a, b in pairwise(tries)]
    table = COOLDOWNS[FaultKind.AVOID_ZONE]
    assert gaps[:4] == [table.initial_s, 2 * table.initial_s, table.max_s, table.max_s]
    assert result.refused == len(tries) - 1
    assert result.stays[0].launched_at >= 7200


def test_world__preempted_zone_is_last_resort(zone: MakeZone) -> None:
    result = run(zone("1110" + "1" * 20), work_s=3600)
    assert result.stays[1].launched_at >= 2400
    assert result.stays[1].launched_at - 1800 >= EARLY_RETRY_S


def test_world__nodes_start_and_stop_together(zone: MakeZone) -> None:
    """Two nodes: one is not enough to start, and losing one ends both."""
    result = run(zone("1222122222222222"), work_s=3000, num_nodes=2)
    first, second = result.stays
    assert first.launched_at >= 600
    assert first.ended_at == 2400
    assert second.launched_at >= 3000
    billed_s = sum(s.ended_at - s.launched_at for s in result.stays)
    assert result.cost == pytest.approx(2 * billed_s / HOUR)
    assert result.hours[Market.SPOT] == pytest.approx(2 * billed_s / HOUR)


def test_world__losing_one_node_ends_all(zone: MakeZone) -> None:
    """Three nodes, one preempted: all work since the last checkpoint is lost."""
    result = run(zone("3333" + "2" * 4 + "3" * 20), work_s=6000, num_nodes=3, checkpoint_every_s=900)
    first, second = result.stays
    assert (first.ended_at, second.launched_at >= 4800) == (2400, True)
    assert result.lost_s == (2400 - 600) % 900 or result.lost_s == 900
    assert result.preemptions == 1


class Audited(World):
    """After every decision, compares what the policy believes to be durable with what is."""

    def _decide(self, event: events.Event) -> None:
        super()._decide(event)
        saves_continuously = not self.workload.checkpoint_every_s
        durable_s = self.workload.done_s(self.now) if saves_continuously else self.workload.durable_s
        assert self.job.tasks[0].durable_s <= durable_s + 1e-6, f"believed at {self.now:.0f} s"


@pytest.mark.parametrize("checkpoint_every_s", [0, 900, 1800])
@pytest.mark.parametrize("num_nodes", [1, 2, 4])
@pytest.mark.parametrize("notice_s", [0, 120])
def test_world__policy_never_counts_lost_work(
    zone: MakeZone, checkpoint_every_s: int, num_nodes: int, notice_s: int
) -> None:
    """Gangs that lose one node, some or all: the survivors cannot save, so only checkpoints count."""
    zones = zone("4444444344440444424444444" * 4), zone("4444444444144444444444444" * 4, name="west-1b", price=1.5)
    scenario = Scenario(
        zones,
        work_s=24000,
        deadline_s=48000,
        cold_start_s=600,
        checkpoint_every_s=checkpoint_every_s,
        num_nodes=num_nodes,
        notice_s=notice_s,
        steps=1000,
    )
    result = Audited(TraceCloud(scenario), "DEADLINE", 0.0).run()
    assert result.preemptions > 0
    assert result.finish_s is not None
    assert result.finish_s <= 48000


def test_world__replacement_needs_quota(zone: MakeZone) -> None:
    """The job runs in the expensive zone while the cheap one is unavailable; moving back needs a second machine."""
    zones = zone("0" * 6 + "1" * 60), zone("1" * 66, name="east-1b", price=2.5)
    moved = [run(*zones, strategy="VALUE", work_s=18000, quota=quota) for quota in (0, 2, 1)]
    assert [len(r.stays) for r in moved] == [2, 2, 1]
    assert "the quota is used up" in " ".join(moved[2].timeline)
    elsewhere = zones[0], zone("1" * 66, name="west-1b", price=2.5)
    assert len(run(*elsewhere, strategy="VALUE", work_s=18000, quota=1).stays) == 2


def test_world__quota_below_num_nodes_refuses_launches(zone: MakeZone) -> None:
    result = run(zone("2" * 20), work_s=600, num_nodes=2, quota=1)
    assert (result.stays, result.cost, result.finish_s) == ((), 0, None)


def test_world__value_moves_to_cheaper_zone(zone: MakeZone) -> None:
    prices = (1.0,) * 10 + (2.8,) * 50
    zones = zone("1" * 60, price=prices), zone("1" * 60, name="east-1b", price=1.5)
    first, second = run(*zones, strategy="VALUE", work_s=18000).stays
    assert (first.zone, second.zone) == (0, 1)
    assert 6000 <= second.launched_at <= 6600
    assert first.ended_at == second.running_at, "it runs until the replacement is ready"


def test_world__transfer_to_another_region_is_billed(zone: MakeZone) -> None:
    zones = zone("1110000000", price=1.0), zone("1111111111", name="west-1a", price=2.0)
    costs = [run(*zones, work_s=2400, egress_per_gb=gb, checkpoint_gb=10.0).cost for gb in (0.0, 0.1)]
    assert costs[1] == pytest.approx(costs[0] + 1.0)


def test_world__policy_knows_the_transfer_price(zone: MakeZone) -> None:
    """A cheaper zone in another region is worth a move, unless the transfer costs more than it saves."""
    zones = zone("0" * 3 + "1" * 60, price=1.0), zone("1" * 63, name="west-1a", price=2.0)
    stays = [run(*zones, strategy="VALUE", work_s=18000, egress_per_gb=gb, checkpoint_gb=10.0).stays for gb in (0, 1)]
    assert [[stay.zone for stay in each] for each in stays] == [[1, 0], [1]]


def test_world__run_may_exceed_traces(zone: MakeZone) -> None:
    result = run(zone("111111"), work_s=9000)
    assert result.finish_s is None
    assert result.is_late(9600)
    assert result.cost == pytest.approx(1.0)


def test_world__prior_starts_inform_deadline(zone: MakeZone) -> None:
    """A new controller keeps more slack, because it has not yet measured how long a start takes."""
    scenario = Scenario((zone("1" * 60),), work_s=18000, deadline_s=21000, cold_start_s=300)
    experienced = World(TraceCloud(scenario), "DEADLINE", 6000.0).run()
    new = World(TraceCloud(replace(scenario, prior_starts=0)), "DEADLINE", 6000.0).run()
    assert experienced.hours[Market.SPOT] > 0
    assert new.hours[Market.SPOT] == 0


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


# None of these starts a replacement while the job runs, as the optimum does not either.
ONE_AT_A_TIME = [s for s in STRATEGIES if s in ("CHEAPEST", "FAILOVER", "EAGER_NEXT_REGION")]
POLICIES = [
    *(lambda c, s=s: World(c, s, 0.0).run() for s in ONE_AT_A_TIME),
    *(lambda c, b=b: b(c, 0.0) for b in (baselines.on_demand, baselines.greedy, baselines.uniform_progress)),
]


@settings(max_examples=100, deadline=None)
@given(markets(), st.sampled_from(range(len(POLICIES))))
def test_optimum__is_lower_bound_of_all_policies(scenario: Scenario, policy: int) -> None:
    cloud = TraceCloud(scenario)
    result = POLICIES[policy](cloud)
    if result.finish_s is not None:
        assert result.cost >= optimum(cloud, 0.0, result.finish_s) - 1e-6


@settings(max_examples=100, deadline=None)
@given(markets(), st.sampled_from([baselines.greedy, baselines.uniform_progress]))
def test_baselines__meet_deadline(scenario: Scenario, baseline: Callable[..., Run]) -> None:
    cloud = TraceCloud(scenario)
    roomy = 2 * scenario.worst_cold_start_s + scenario.tick_s + scenario.work_s
    assert scenario.deadline_s is not None
    if scenario.deadline_s >= roomy:
        # The published safety net does not count that a notice ends a stay early.
        assert not baseline(cloud, 0.0).is_late(scenario.deadline_s + scenario.notice_s)


@settings(max_examples=150, deadline=None)
@given(markets(), st.sampled_from([baselines.greedy, baselines.uniform_progress, baselines.lifetime_oracle]))
def test_baselines__skipping_ticks_changes_nothing(scenario: Scenario, baseline: Callable[..., Run]) -> None:
    cloud = TraceCloud(scenario)
    for at in (0.0, 1200.0):
        assert baseline(cloud, at) == baseline(cloud, at, skips=False)
