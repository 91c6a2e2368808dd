"""DEADLINE, decision by decision."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perdure.recovery import actions, events
from perdure.recovery.history import History, Sighting, StartUps, learn
from perdure.recovery.job import AttemptView, JobView, NodeView, Recovery, TaskView, View
from perdure.recovery.market import FaultKind, Market, MarketView, Offer
from perdure.recovery.needs import Need
from perdure.recovery.policies.choice import Move, Place, Stay, Wait
from perdure.recovery.policies.cooldown import launch_refusal
from perdure.recovery.policies.deadline import RESERVE
from perdure.recovery.policies.registry import policy
from perdure.recovery.statuses import AttemptState, TaskState
from perdure.recovery.step import step

NOW = 1_000_000.0
HOUR = 3600.0
SPOT = Offer("aws", "east", "e1", "v", Market.SPOT, 1.0, 3.0, 8, 61)
CERTAIN = replace(SPOT, market=Market.ON_DEMAND, price_per_hour=3.0)
WORST_S = StartUps().worst_s
SOLD_OUT = launch_refusal(SPOT, NOW, kind=FaultKind.AVOID_ZONE)
deadline = policy("DEADLINE")


def task(slack_s: float, work_s: float = 48 * HOUR, **changes: object) -> TaskView:
    """One with that much time to its deadline beyond its work, the worst start and two minutes."""
    asked = Recovery("DEADLINE", deadline_at=NOW + work_s + WORST_S + 120 + slack_s, work_s=work_s)
    return TaskView(0, (Need(),), recovery=asked, wake_at=NOW, **changes)  # type: ignore[arg-type]


def running(slack_s: float, offer: Offer, ran_s: float = 0.0) -> TaskView:
    attempt = AttemptView(1, AttemptState.RUNNING, offer, (NodeView(0),), NOW - ran_s, NOW - ran_s, NOW - ran_s)
    return task(slack_s, attempts=(attempt,), state=TaskState.RUNNING, run_since=NOW - ran_s, last_offer=offer)


MARKET = MarketView((SPOT, CERTAIN))
NO_SPOT = MarketView((SPOT, CERTAIN), (SOLD_OUT,))


def test_spot_is_taken_while_there_is_slack_for_a_start_in_vain() -> None:
    assert deadline.choose(task(WORST_S + 1), MARKET, NOW) == Place(SPOT)
    assert deadline.choose(task(WORST_S - 1), MARKET, NOW) == Place(CERTAIN)


def test_while_spot_is_away_slack_is_waited_away_down_to_the_reserve() -> None:
    reserve_s = RESERVE * 48 * HOUR
    assert isinstance(deadline.choose(task(reserve_s + HOUR), NO_SPOT, NOW), Wait)
    why = (f"{SPOT.key}: avoided for 180 s: avoid-zone",)
    assert deadline.choose(task(reserve_s + 60), NO_SPOT, NOW) == Wait(pytest.approx(NOW + 60), why)
    assert deadline.choose(task(reserve_s - 1), NO_SPOT, NOW) == Place(CERTAIN)


def test_on_on_demand_spot_is_tried_beside_it_unless_too_little_slack_is_left_for_a_stay() -> None:
    found = deadline.reconsider(running(HOUR, CERTAIN), MARKET, NOW)
    assert isinstance(found, Move)
    assert found.offer == SPOT
    assert isinstance(deadline.reconsider(running(3 * HOUR, CERTAIN), NO_SPOT, NOW), Stay)
    assert isinstance(deadline.reconsider(running(600, CERTAIN), MARKET, NOW), Stay)


def test_with_little_slack_spot_is_tried_where_the_newest_checkpoint_is_young() -> None:
    ran = running(600 - HOUR, CERTAIN, ran_s=HOUR)
    found = deadline.reconsider(replace(ran, saved_s=HOUR - 200), MARKET, NOW)
    assert isinstance(found, Move)
    assert found.offer == SPOT
    assert isinstance(deadline.reconsider(replace(ran, saved_s=HOUR - 400), MARKET, NOW), Stay)
    none_left = running(-HOUR - 1, CERTAIN, ran_s=HOUR)
    assert isinstance(deadline.reconsider(replace(none_left, saved_s=HOUR), MARKET, NOW), Stay)


def test_work_on_spot_counts_once_it_is_durable() -> None:
    """Five hours of slack, then six hours of work of which nothing was saved: all of it may be lost."""
    ran = running(-HOUR, SPOT, ran_s=6 * HOUR)
    found = deadline.reconsider(ran, MARKET, NOW)
    assert isinstance(found, Move)
    assert found.offer == CERTAIN
    saved = replace(ran, saved_s=6 * HOUR)
    assert deadline.reconsider(saved, MARKET, NOW) == Stay(NOW + 600)


def test_it_looks_again_before_slack_is_used_up() -> None:
    assert deadline.reconsider(running(90, SPOT), MARKET, NOW) == Stay(pytest.approx(NOW + 90))


def test_slow_starts_make_it_careful_and_quick_ones_bold() -> None:
    def after(seconds: float) -> MarketView:
        history = History()
        for n in range(50):
            history = learn(history, Sighting(SPOT.key, NOW - 100 + n, available=True, started_s=seconds))
        return replace(MARKET, history=history)

    tight = task(0.5 * HOUR)
    assert deadline.choose(tight, after(60), NOW) == Place(SPOT)
    assert deadline.choose(tight, after(3600), NOW) == Place(CERTAIN)


@pytest.mark.parametrize(("left_s", "is_late"), [(48 * HOUR + 800, False), (48 * HOUR + 600, True)])
def test_the_user_is_told_once_when_not_even_on_demand_can_make_it(left_s: float, *, is_late: bool) -> None:
    asked = Recovery("DEADLINE", deadline_at=NOW + left_s, work_s=48 * HOUR)
    job = JobView(1, (TaskView(0, (Need(),), recovery=asked, wake_at=NOW),))
    done = step(View(job, MARKET), events.Tick(), NOW)
    told = [a for a in done.actions if isinstance(a, actions.Note) and a.kind == "task.late"]
    assert bool(told) == is_late
    again = step(View(done.job, MARKET), events.Tick(), NOW + 1)
    assert not [a for a in again.actions if isinstance(a, actions.Note) and is_late and a.kind == "task.late"]
