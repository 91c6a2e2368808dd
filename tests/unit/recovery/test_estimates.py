"""Work that nobody named, from the steps that were saved."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perdure.recovery import actions, events
from perdure.recovery.estimates import estimated
from perdure.recovery.job import AttemptView, JobView, NodeView, Recovery, TaskView, View
from perdure.recovery.market import Market, MarketView, Offer
from perdure.recovery.needs import Need
from perdure.recovery.policies.choice import Place
from perdure.recovery.policies.registry import policy
from perdure.recovery.statuses import AttemptState, TaskState
from perdure.recovery.step import step

NOW = 1_000_000.0
HOUR = 3600.0
SPOT = Offer("aws", "east", "e1", "v", Market.SPOT, 1.0, 3.0, 8, 61)
CERTAIN = replace(SPOT, market=Market.ON_DEMAND, price_per_hour=3.0)
MARKET = MarketView((SPOT, CERTAIN))
TASK = TaskView(0, (Need(),), recovery=Recovery("DEADLINE", deadline_at=NOW + 60 * HOUR), wake_at=NOW)


def saved(number: int | None, total: int | None = 1000) -> events.Saved:
    return events.Saved(0, 1, NOW, number, total)


def test_one_step_tells_nothing_and_two_tell_the_rest() -> None:
    first = estimated(TASK, saved(100), 700.0)
    assert first.work_s is None
    second = estimated(first, saved(200), 1200.0)
    assert second.work_s == pytest.approx(1200 + 1.1 * 800 * 5)
    assert estimated(second, saved(1000), 5200.0).work_s == 5200.0


def test_a_start_from_another_jobs_checkpoint_is_not_counted() -> None:
    first = estimated(TASK, saved(900), 60.0)
    assert estimated(first, saved(950), 560.0).work_s == pytest.approx(560 + 1.1 * 50 * 10)


@pytest.mark.parametrize("event", [saved(None), saved(200, None)])
def test_who_tells_no_steps_is_not_estimated(event: events.Saved) -> None:
    assert estimated(TASK, event, 100.0) == TASK


def test_work_repeated_after_a_loss_is_no_faster() -> None:
    known = estimated(estimated(TASK, saved(100), 700.0), saved(200), 1200.0)
    assert estimated(known, saved(100), 1000.0) == known


def test_what_the_user_said_counts() -> None:
    task = replace(TASK, recovery=replace(TASK.recovery, work_s=HOUR))
    assert estimated(estimated(task, saved(1), 10.0), saved(2), 20.0).work_s == HOUR


def test_without_knowing_the_work_a_deadline_is_kept_on_demand_and_spot_is_used_once_it_is_known() -> None:
    assert policy("DEADLINE").choose(TASK, MARKET, NOW) == Place(CERTAIN)
    attempt = AttemptView(1, AttemptState.RUNNING, CERTAIN, (NodeView(0, connected=True),), NOW, NOW, NOW)
    task = replace(TASK, attempts=(attempt,), state=TaskState.RUNNING, run_since=NOW, last_offer=CERTAIN, wake_at=None,
                   next_generation=2, started_at=NOW)  # fmt: skip
    job = JobView(1, (task,))
    for number in (1, 2):
        at = NOW + number * 600
        done = step(View(job, MARKET), events.Saved(0, 1, at, number, 100), at)
        job = done.job
    (said,) = [a for a in done.actions if isinstance(a, actions.Note) and a.kind == "task.work"]
    assert said.data == {"work_s": round(1200 + 1.1 * 98 * 600)}
    (launch,) = [a for a in done.actions if isinstance(a, actions.Launch)]
    assert launch.offer == SPOT
