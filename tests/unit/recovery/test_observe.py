"""`observe`: the estimate of a task's work from the steps that were saved."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perdure.recovery import actions, events
from perdure.recovery.job import AttemptView, JobView, NodeView, Recovery, TaskView, View, step_time_margin
from perdure.recovery.market.requirements import MachineRequirement
from perdure.recovery.market.view import Market, MarketView, Offer
from perdure.recovery.observe import observe, with_work_estimate
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
    assert second.work_s == pytest.approx(1200 + step_time_margin(500) * 800 * 5)
    assert with_work_estimate(second, saved(1000), 5200.0).work_s == 5200.0


def test_work_estimate__ignores_steps_before_first_report() -> None:
    first = with_work_estimate(TASK, saved(900), 60.0)
    assert with_work_estimate(first, saved(950), 560.0).work_s == pytest.approx(560 + step_time_margin(500) * 50 * 10)


@pytest.mark.parametrize("event", [saved(None), saved(200, None)])
def test_work_estimate__needs_step_numbers(event: events.CheckpointDurable) -> None:
    assert with_work_estimate(TASK, event, 100.0) == TASK


def test_work_estimate__ignores_repeated_steps() -> None:
    known = with_work_estimate(with_work_estimate(TASK, saved(100), 700.0), saved(200), 1200.0)
    assert with_work_estimate(known, saved(100), 1000.0) == known


def test_step_time_margin__shrinks_with_evidence() -> None:
    assert step_time_margin(0) == pytest.approx(1.1)
    assert step_time_margin(HOUR) == pytest.approx(1.05)
    assert step_time_margin(99 * HOUR) == pytest.approx(1.001)


def reporting(stated_h: float, step_s: float, seen: int) -> TaskView:
    """A task with 1,000 steps after its checkpoints of step 1 and, `seen` steps later, the newest one."""
    task = replace(TASK, recovery=replace(TASK.recovery, work_s=stated_h * HOUR))
    for number in (1, 1 + seen):
        done_s = number * step_s
        task = with_work_estimate(replace(task, saved_s=done_s), saved(number), done_s)
    return task


def test_work__steps_are_believed_after_an_hour_of_them() -> None:
    """Twenty hours are stated, and the steps take forty: the larger counts for safety until they are believed."""
    early, late = reporting(20, 144, seen=20), reporting(20, 144, seen=26)
    assert early.work_s == 20 * HOUR
    assert early.cautious_work_s == early.estimated_s
    assert early.estimated_s == pytest.approx(40 * HOUR, rel=0.08)
    assert late.work_s == late.cautious_work_s == late.estimated_s


def test_work__overstated_work_yields_to_steps() -> None:
    early, late = reporting(20, 36, seen=80), reporting(20, 36, seen=101)
    assert early.work_s == early.cautious_work_s == 20 * HOUR
    assert late.work_s == late.cautious_work_s == pytest.approx(10 * HOUR, rel=0.06)


def test_work__stated_work_that_agrees_with_steps_is_kept() -> None:
    """The estimate's margin is for what nobody knows."""
    for seen in (1, 50, 51, 900):
        task = reporting(20, 72, seen)
        assert task.work_s == task.cautious_work_s == 20 * HOUR


def test_work__is_unproven_until_measured() -> None:
    task = replace(TASK, recovery=replace(TASK.recovery, work_s=20 * HOUR))
    assert task.work_is_unproven
    assert not replace(task, saved_s=HOUR).work_is_unproven
    assert replace(task, saved_s=HOUR, first_step=5).work_is_unproven
    assert not TASK.work_is_unproven


def test_checkpoint_durable__timeline_names_both_amounts_of_work() -> None:
    attempt = AttemptView(1, AttemptState.RUNNING, CERTAIN, (NodeView(0, connected=True),), NOW, NOW, NOW)
    stated = replace(TASK.recovery, work_s=20 * HOUR)
    task = replace(TASK, recovery=stated, attempts=(attempt,), state=TaskState.RUNNING, run_since=NOW,
                   last_offer=CERTAIN, wake_at=None, next_generation=2, started_at=NOW)  # fmt: skip
    job, entries = JobView(1, (task,)), []
    for number in range(1, 9):
        at = NOW + number * 1440
        result = step(View(job, MARKET), events.CheckpointDurable(0, 1, at, number * 10, 1000), at)
        job = result.job
        kinds = [a for a in result.actions if isinstance(a, actions.TimelineEntry)]
        entries += [(number, entry) for entry in kinds if entry.kind == "task.work_estimated"]
    ((number, entry),) = entries
    assert number == 4
    assert entry.data == {"work_s": pytest.approx(40 * HOUR, rel=0.06), "stated_s": 20 * HOUR}
    assert "not for 20.0 h as `work` states" in entry.message


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
    assert entry.data == {"work_s": round(1200 + step_time_margin(600) * 98 * 600)}
    (launch,) = [a for a in result.actions if isinstance(a, actions.Launch)]
    assert launch.offer == SPOT


# --- a durable checkpoint that cannot be loaded -----------------------------------------------------------------------


def resumed(first: int | None = 100, step: int | None = 500) -> JobView:
    """The second run of a task, half an hour old. The first saved steps 100 to 500 in five hours."""
    attempt = AttemptView(2, AttemptState.RUNNING, SPOT, (NodeView(0, connected=True),), NOW, NOW, NOW)
    task = replace(TASK, attempts=(attempt,), state=TaskState.RUNNING, run_since=NOW, last_offer=SPOT, wake_at=None,
                   next_generation=3, started_at=NOW - 6 * HOUR, has_run=True, resumed_s=5 * HOUR, saved_s=5 * HOUR,
                   first_step=first, first_step_s=HOUR, saved_step=step, saved_in=1)  # fmt: skip
    return JobView(1, (task,))


def after(job: JobView, *loaded: int, generation: int = 2) -> JobView:
    for number in loaded:
        job = step(View(job, MARKET), events.CheckpointLoaded(0, generation, number), NOW + 60).job
    return job


@pytest.mark.parametrize(
    ("loaded", "durable_h"),
    [
        ((500,), 5),
        ((501,), 5),
        ((300,), 3),
        ((100,), 1),
        ((90,), 0),  # nothing is known of the time before the first step
        ((300, 500), 5),  # the best step so far for a comparison, say, and then the newest
        ((500, 300), 5),
    ],
)
def test_checkpoint_loaded__undoes_work_after_an_older_step(loaded: tuple[int, ...], durable_h: float) -> None:
    (task,) = after(resumed(), *loaded).tasks
    assert task.durable_s == pytest.approx(durable_h * HOUR)
    assert task.progress_s(NOW + HOUR) == pytest.approx((durable_h + 1) * HOUR)


def test_checkpoint_loaded__is_told_and_reconsidered() -> None:
    """Slack of two hours is gone, so the task leaves spot at once."""
    job = resumed()
    worst_s = MARKET.history.startup_times.worst_s
    recovery = replace(TASK.recovery, work_s=20 * HOUR, deadline_at=NOW + 16 * HOUR + worst_s)
    job = job.with_task(replace(job.tasks[0], recovery=recovery))
    result = step(View(job, MARKET), events.CheckpointLoaded(0, 2, 300), NOW + 60)
    (told,) = [a for a in result.actions if isinstance(a, actions.TimelineEntry) and a.kind == "task.work_lost"]
    assert told.data == {"step": 300, "durable_step": 500, "lost_s": 2 * 3600}
    (launch,) = [a for a in result.actions if isinstance(a, actions.Launch)]
    assert launch.offer == CERTAIN
    kept = step(View(job, MARKET), events.CheckpointLoaded(0, 2, 500), NOW + 60)
    assert kept.actions == ()


@pytest.mark.parametrize("job", [resumed(step=None), resumed(first=None)])
def test_checkpoint_loaded__changes_nothing_without_known_steps(job: JobView) -> None:
    assert after(job, 300).tasks[0].durable_s == 5 * HOUR


def test_checkpoint_loaded__of_another_run_is_ignored() -> None:
    assert after(resumed(), 300, generation=1) == resumed()


def test_checkpoint_loaded__next_save_counts_from_there() -> None:
    job = after(resumed(), 300)
    at = NOW + HOUR
    (task,) = step(View(job, MARKET), events.CheckpointDurable(0, 2, at, 400, 1000), at).job.tasks
    assert task.durable_s == pytest.approx(4 * HOUR)
    assert task.estimated_s == pytest.approx(4 * HOUR + step_time_margin(3 * HOUR) * 600 * 36)
    compared = after(JobView(1, (task,)), 100)
    assert compared.tasks[0].durable_s == pytest.approx(4 * HOUR), "what is loaded after a save is not continued from"


def test_checkpoint_loaded__counts_until_the_next_run_loads() -> None:
    """A run that began from step 300 is lost before it saves. The next one can load step 500 after all."""
    (task,) = after(resumed(), 300).tasks
    lost = replace(task, run_since=None, attempts=(), state=TaskState.WAITING)
    assert lost.durable_s == pytest.approx(3 * HOUR)
    attempt = AttemptView(3, AttemptState.RUNNING, SPOT, (NodeView(0, connected=True),), NOW, NOW, NOW)
    again = replace(lost, attempts=(attempt,), state=TaskState.RUNNING, run_since=NOW)
    assert again.progress_s(NOW) == pytest.approx(3 * HOUR)
    assert after(JobView(1, (again,)), 500, generation=3).tasks[0].progress_s(NOW) == pytest.approx(5 * HOUR)


def test_checkpoint_loaded__many_steps_of_a_run_are_told_once_and_wake_the_policy_once() -> None:
    job, woken = resumed(), 0
    entries: list[actions.Action] = []
    for number in range(101, 500):
        job = observe(job, events.CheckpointLoaded(0, 2, number), NOW + 60, entries)
        woken += job.tasks[0].wake_at == NOW + 60
        job = job.with_task(replace(job.tasks[0], wake_at=None))
    told = [one for one in entries if isinstance(one, actions.TimelineEntry)]
    assert (len(told), woken) == (1, 1)
    assert job.tasks[0].durable_s == pytest.approx(5 * HOUR - 36)


def test_checkpoint_loaded__before_the_first_step_measures_steps_anew() -> None:
    """Steps 0 to 100 had not been measured: they are none of the time between the steps 100 and 200 of the next run."""
    job = after(resumed(), 0)
    for number in (200, 300):
        at = NOW + number * 36
        job = step(View(job, MARKET), events.CheckpointDurable(0, 2, at, number, 1000), at).job
    (task,) = job.tasks
    assert task.durable_s == pytest.approx(3 * HOUR)
    assert task.estimated_s == pytest.approx(3 * HOUR + step_time_margin(HOUR) * 700 * 36)
