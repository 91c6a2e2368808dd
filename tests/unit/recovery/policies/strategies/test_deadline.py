"""The policy DEADLINE, decision by decision."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perdure.recovery import actions, events
from perdure.recovery.job import AttemptView, JobView, NodeView, Recovery, TaskView, View
from perdure.recovery.market.cooldown import unavailable_after_launch
from perdure.recovery.market.history import History, OfferObservation, StartupTimes, with_observation
from perdure.recovery.market.requirements import MachineRequirement
from perdure.recovery.market.unavailable import FaultKind
from perdure.recovery.market.view import Market, MarketView, Offer
from perdure.recovery.policies.decisions import Move, Place, Stay, Wait
from perdure.recovery.policies.registry import get_policy
from perdure.recovery.policies.strategies.deadline import RESERVE
from perdure.recovery.statuses import AttemptState, TaskState
from perdure.recovery.step import step

NOW = 1_000_000.0
HOUR = 3600.0
SPOT = Offer("aws", "east", "e1", "v", Market.SPOT, 1.0, 3.0, 8, 61)
CERTAIN = replace(SPOT, market=Market.ON_DEMAND, price_per_hour=3.0)
WORST_S = StartupTimes().worst_s
SOLD_OUT = unavailable_after_launch(SPOT, NOW, kind=FaultKind.AVOID_ZONE)
deadline = get_policy("DEADLINE")


def task(slack_s: float, work_s: float = 48 * HOUR, **changes: object) -> TaskView:
    """A task with this slack: time to the deadline beyond its work, the worst start and two minutes."""
    recovery = Recovery("DEADLINE", deadline_at=NOW + work_s + WORST_S + 120 + slack_s, work_s=work_s)
    return TaskView(0, (MachineRequirement(),), recovery=recovery, wake_at=NOW, **changes)  # type: ignore[arg-type]


def running(slack_s: float, offer: Offer, ran_s: float = 0.0) -> TaskView:
    attempt = AttemptView(1, AttemptState.RUNNING, offer, (NodeView(0),), NOW - ran_s, NOW - ran_s, NOW - ran_s)
    return task(slack_s, attempts=(attempt,), state=TaskState.RUNNING, run_since=NOW - ran_s, last_offer=offer)


MARKET = MarketView((SPOT, CERTAIN))
NO_SPOT = MarketView((SPOT, CERTAIN), (SOLD_OUT,))


def test_choose__takes_spot_while_slack_covers_failed_start() -> None:
    assert deadline.choose(task(WORST_S + 1), MARKET, NOW) == Place(SPOT)
    assert deadline.choose(task(WORST_S - 1), MARKET, NOW) == Place(CERTAIN)


def test_choose__keeps_less_slack_if_some_tasks_may_be_late() -> None:
    """Of a hundred start-ups, ten take longer than the time that is kept for one."""
    kept_s = [WORST_S, StartupTimes().within_s(0.99), StartupTimes().within_s(0.9)]
    assert kept_s == sorted(kept_s, reverse=True)
    certain = task(WORST_S - 60)
    assert deadline.choose(certain, MARKET, NOW) == Place(CERTAIN)
    assert deadline.choose(replace(certain, recovery=replace(certain.recovery, on_time=0.9)), MARKET, NOW) == Place(
        SPOT
    )


def test_choose__takes_dear_spot_that_lasts_where_slack_is_scarce() -> None:
    """The cheap zone was lost ten times within ten hours, the dear one was held all the time."""
    stable, history = replace(SPOT, region="west", zone="w1", price_per_hour=1.5), History()
    held_since = NOW - 200 * HOUR
    for lost_at in range(10):
        at = NOW - (10 - lost_at) * HOUR
        history = with_observation(history, OfferObservation(SPOT.key, at, available=True))
        lost = OfferObservation(SPOT.key, at + 1200, available=False, held_since=at)
        history = with_observation(history, lost)
    history = with_observation(history, OfferObservation(stable.key, NOW, available=True, held_since=held_since))
    market = MarketView((SPOT, stable, CERTAIN), history=history)
    assert deadline.choose(proven(1.5 * WORST_S), market, NOW) == Place(stable)
    assert deadline.choose(proven(40 * HOUR), market, NOW) == Place(SPOT)


def proven(slack_s: float, **changes: object) -> TaskView:
    """A task of 48 hours that has shown, by an hour of work, how fast it is."""
    return task(slack_s - HOUR, resumed_s=HOUR, **changes)


RESERVE_S = RESERVE * 47 * HOUR


def test_choose__waits_for_spot_down_to_reserve() -> None:
    assert isinstance(deadline.choose(proven(RESERVE_S + HOUR), NO_SPOT, NOW), Wait)
    why = (f"{SPOT.key}: avoided for 180 s: avoid-zone",)
    assert deadline.choose(proven(RESERVE_S + 60), NO_SPOT, NOW) == Wait(pytest.approx(NOW + 60), why)
    assert deadline.choose(proven(RESERVE_S - 1), NO_SPOT, NOW) == Place(CERTAIN)


def test_choose__keeps_more_where_losses_cost_more() -> None:
    """Ten losses in ten hours, each of half an hour's work: twice the usual reserve."""
    rough = {"recovery_count": 10, "run_seconds": 10 * HOUR, "saved_s": 5 * HOUR}
    left_s = 43 * HOUR
    for slack_s, kind in ((2 * RESERVE * left_s + 60, Wait), (2 * RESERVE * left_s - 60, Place)):
        assert isinstance(deadline.choose(task(slack_s - 5 * HOUR, **rough), NO_SPOT, NOW), kind)
    calm = {**rough, "recovery_count": 0, "saved_s": 10 * HOUR}
    assert isinstance(deadline.choose(task(RESERVE * 38 * HOUR + 60 - 10 * HOUR, **calm), NO_SPOT, NOW), Wait)


def test_choose__keeps_slack_for_understated_work_until_proven() -> None:
    """Waiting stops while a tenth more work would still fit. Where it would not fit anyway, nothing is kept for it."""
    doubt_s = 48 * HOUR / 9
    assert deadline.choose(task(doubt_s + WORST_S - 60), NO_SPOT, NOW) == Place(CERTAIN)
    assert isinstance(deadline.choose(task(doubt_s + WORST_S + 60), NO_SPOT, NOW), Wait)
    assert deadline.choose(task(doubt_s + WORST_S - 60), MARKET, NOW) == Place(CERTAIN)
    assert deadline.choose(task(doubt_s - 2 * WORST_S - 60), MARKET, NOW) == Place(SPOT)
    assert deadline.choose(proven(doubt_s + WORST_S - 60), MARKET, NOW) == Place(SPOT)


DEAR = replace(SPOT, zone="e2", price_per_hour=2.1)


def test_choose__waits_rather_than_take_dear_spot_while_there_is_time() -> None:
    market = MarketView((SPOT, DEAR, CERTAIN), (SOLD_OUT,))
    decision = deadline.choose(proven(40 * HOUR), market, NOW)
    assert isinstance(decision, Wait)
    assert decision.why[-1] == f"{DEAR.key}: costs $2.10 per hour; there is time to wait for a better offer"
    assert deadline.choose(proven(RESERVE_S + 600), market, NOW) == Place(DEAR)
    assert deadline.choose(proven(RESERVE_S - 60), market, NOW) == Place(DEAR)
    fair = replace(DEAR, price_per_hour=1.01)
    assert deadline.choose(proven(10 * HOUR), MarketView((SPOT, fair, CERTAIN), (SOLD_OUT,)), NOW) == Place(fair)


def test_choose__tries_cheap_spot_again_although_dear_spot_was_not_tried() -> None:
    sold_out = unavailable_after_launch(SPOT, NOW - 600, kind=FaultKind.AVOID_ZONE)
    market = MarketView((SPOT, DEAR, CERTAIN), (sold_out,))
    assert deadline.choose(proven(40 * HOUR, consecutive_refusals=1), market, NOW) == Place(SPOT)


def test_choose__takes_dear_spot_where_cheap_spot_is_rare() -> None:
    history = History()
    for hours in range(100, 0, -1):
        history = with_observation(history, OfferObservation(SPOT.key, NOW - hours * HOUR, available=False))
    market = MarketView((SPOT, DEAR, CERTAIN), (SOLD_OUT,), history=history)
    assert deadline.choose(proven(40 * HOUR), market, NOW) == Place(DEAR)
    assert isinstance(deadline.choose(proven(1000 * HOUR), market, NOW), Wait)


def test_choose__takes_cheapest_spot_however_far_the_deadline_is() -> None:
    """On-demand, spread over a month, would cost less per hour than any spot ever did."""
    assert deadline.choose(proven(1000 * HOUR), MarketView((SPOT, DEAR, CERTAIN)), NOW) == Place(SPOT)


def lost_in_east(slack_s: float, move_cost: float, ago_s: float) -> tuple[TaskView, MarketView]:
    west = replace(SPOT, region="west", zone="w1", price_per_hour=1.1)
    history = with_observation(History(), OfferObservation(SPOT.key, NOW - ago_s - HOUR, available=True))
    history = with_observation(
        history, OfferObservation(SPOT.key, NOW - ago_s, available=False, held_since=NOW - ago_s - HOUR)
    )
    lost = proven(slack_s, has_run=True, last_offer=SPOT, preempted_from=SPOT)
    lost = replace(lost, recovery=replace(lost.recovery, move_cost=move_cost))
    return lost, MarketView((SPOT, west, CERTAIN), (SOLD_OUT,), history=history)


@pytest.mark.parametrize(
    ("slack_s", "move_cost", "ago_s", "waits"),
    [
        (RESERVE_S + HOUR, 1.0, 600, True),
        (RESERVE_S - 60, 1.0, 600, False),
        (RESERVE_S + HOUR, 0.0, 600, False),
        (RESERVE_S + HOUR, 1.0, 2 * HOUR + 1, False),
    ],
)
def test_choose__waits_for_home_region_before_paying_a_move(
    slack_s: float, move_cost: float, ago_s: float, *, waits: bool
) -> None:
    lost, market = lost_in_east(slack_s, move_cost, ago_s)
    decision = deadline.choose(lost, market, NOW)
    assert isinstance(decision, Wait) == waits
    if not waits:
        assert isinstance(decision, Place)
        assert decision.offer.region == "west"


def test_reconsider__tries_spot_beside_on_demand_with_enough_slack() -> None:
    decision = deadline.reconsider(running(HOUR, CERTAIN), MARKET, NOW)
    assert isinstance(decision, Move)
    assert decision.offer == SPOT
    assert isinstance(deadline.reconsider(running(3 * HOUR, CERTAIN), NO_SPOT, NOW), Stay)
    assert isinstance(deadline.reconsider(running(600, CERTAIN), MARKET, NOW), Stay)


def test_reconsider__tries_spot_with_little_slack_after_recent_checkpoint() -> None:
    ran = running(600 - HOUR, CERTAIN, ran_s=HOUR)
    decision = deadline.reconsider(replace(ran, saved_s=HOUR - 200), MARKET, NOW)
    assert isinstance(decision, Move)
    assert decision.offer == SPOT
    assert isinstance(deadline.reconsider(replace(ran, saved_s=HOUR - 400), MARKET, NOW), Stay)
    none_left = running(-HOUR - 1, CERTAIN, ran_s=HOUR)
    assert isinstance(deadline.reconsider(replace(none_left, saved_s=HOUR), MARKET, NOW), Stay)


def test_reconsider__counts_only_durable_work_on_spot() -> None:
    """Five hours of slack, then six hours of work without a checkpoint: all of it may be lost."""
    ran = running(-HOUR, SPOT, ran_s=6 * HOUR)
    decision = deadline.reconsider(ran, MARKET, NOW)
    assert isinstance(decision, Move)
    assert decision.offer == CERTAIN
    saved = replace(ran, saved_s=6 * HOUR)
    assert deadline.reconsider(saved, MARKET, NOW) == Stay(NOW + 600)


def test_reconsider__looks_again_before_slack_is_used_up() -> None:
    assert deadline.reconsider(running(90, SPOT), MARKET, NOW) == Stay(pytest.approx(NOW + 90))


def test_choose__depends_on_observed_startup_times() -> None:
    def after(seconds: float) -> MarketView:
        history = History()
        for n in range(50):
            history = with_observation(
                history, OfferObservation(SPOT.key, NOW - 100 + n, available=True, started_s=seconds)
            )
        return replace(MARKET, history=history)

    tight = task(0.5 * HOUR)
    assert deadline.choose(tight, after(60), NOW) == Place(SPOT)
    assert deadline.choose(tight, after(3600), NOW) == Place(CERTAIN)


@pytest.mark.parametrize(("left_s", "is_late"), [(48 * HOUR + 800, False), (48 * HOUR + 600, True)])
def test_deadline_forecast__is_reported_once(left_s: float, *, is_late: bool) -> None:
    recovery = Recovery("DEADLINE", deadline_at=NOW + left_s, work_s=48 * HOUR)
    job = JobView(1, (TaskView(0, (MachineRequirement(),), recovery=recovery, wake_at=NOW),))
    result = step(View(job, MARKET), events.Tick(), NOW)
    entries = [
        a for a in result.actions if isinstance(a, actions.TimelineEntry) and a.kind == "task.deadline_missed_forecast"
    ]
    assert bool(entries) == is_late
    repeated = step(View(result.job, MARKET), events.Tick(), NOW + 1)
    assert not [
        a
        for a in repeated.actions
        if isinstance(a, actions.TimelineEntry) and is_late and a.kind == "task.deadline_missed_forecast"
    ]
