"""`observe`: the estimate of a task's work from the steps that were saved."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perdure.recovery import actions, events
from perdure.recovery.job import AttemptView, JobView, NodeView, Recovery, TaskView, View
from perdure.recovery.market.requirements import MachineRequirement
from perdure.recovery.market.view import Market, MarketView, Offer
from perdure.recovery.observe import with_work_estimate
from perdure.recovery.policies.decisions import Place
from perdure.recovery.policies.registry import get_policy
from perdure.recovery.statuses import AttemptState, TaskState
from perdure.recovery.step import step

NOW = 1_000_000.0
HOUR = 3600.0
SPOT = Offer("aws", "east", "e1", "v", Market.SPOT, 1.0, 3.0, 8, 61)
CERTAIN = replace(SPOT, market=Market.ON_DEMAND, price_per_hour=3.0)
MARKET = MarketView((SPOT, CERTAIN))
TASK = TaskView(0, (MachineRequirement(),), recovery=Recovery("DEADLINE", deadline_at=NOW + 60 * HOUR), wake_at=NOW)


def saved(number: int | None, total: int | None = 1000) -> events.CheckpointDurable:
    return events.CheckpointDurable(0, 1, NOW, number, total)


def test_work_estimate__needs_two_steps() -> None:
    first = with_work_estimate(TASK, saved(100), 700.0)
    assert first.work_s is None
    second = with_work_estimate(first, saved(200), 1200.0)
    assert second.work_s == pytest.approx(1200 + 1.1 * 800 * 5)
    assert with_work_estimate(second, saved(1000), 5200.0).work_s == 5200.0


def test_work_estimate__ignores_steps_before_first_report() -> None:
    first = with_work_estimate(TASK, saved(900), 60.0)
    assert with_work_estimate(first, saved(950), 560.0).work_s == pytest.approx(560 + 1.1 * 50 * 10)


@pytest.mark.parametrize("event", [saved(None), saved(200, None)])
def test_work_estimate__needs_step_numbers(event: events.CheckpointDurable) -> None:
    assert with_work_estimate(TASK, event, 100.0) == TASK


def test_work_estimate__ignores_repeated_steps() -> None:
    known = with_work_estimate(with_work_estimate(TASK, saved(100), 700.0), saved(200), 1200.0)
    assert with_work_estimate(known, saved(100), 1000.0) == known


def test_work_estimate__yields_to_configured_work() -> None:
    task = replace(TASK, recovery=replace(TASK.recovery, work_s=HOUR))
    assert with_work_estimate(with_work_estimate(task, saved(1), 10.0), saved(2), 20.0).work_s == HOUR


def test_checkpoint_durable__estimate_lets_deadline_task_move_to_spot() -> None:
    assert get_policy("DEADLINE").choose(TASK, MARKET, NOW) == Place(CERTAIN)
    attempt = AttemptView(1, AttemptState.RUNNING, CERTAIN, (NodeView(0, connected=True),), NOW, NOW, NOW)
    task = replace(TASK, attempts=(attempt,), state=TaskState.RUNNING, run_since=NOW, last_offer=CERTAIN, wake_at=None,
                   next_generation=2, started_at=NOW)  # fmt: skip
    job = JobView(1, (task,))
    for number in (1, 2):
        at = NOW + number * 600
        result = step(View(job, MARKET), events.CheckpointDurable(0, 1, at, number, 100), at)
        job = result.job
    (entry,) = [a for a in result.actions if isinstance(a, actions.TimelineEntry) and a.kind == "task.work_estimated"]
    assert entry.data == {"work_s": round(1200 + 1.1 * 98 * 600)}
    (launch,) = [a for a in result.actions if isinstance(a, actions.Launch)]
    assert launch.offer == SPOT
