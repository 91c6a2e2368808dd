"""`rules.limits`: standing still, running too long, costing too much. Driven to the wake times that `step` names."""

from __future__ import annotations

import pytest

from perdure.recovery import actions, events
from perdure.recovery.frozen import replace
from perdure.recovery.job import Recovery
from perdure.recovery.reasons import Reason
from perdure.recovery.rules import limits
from perdure.recovery.statuses import NodePhase, Status, TaskState
from support.worlds.job_driver import JobDriver, new_job

RESTARTS = Recovery(stuck_after_s=600.0, restart_when_stuck_s=1200.0)


def step_saved(step: int, generation: int = 1) -> events.StepSaved:
    return events.StepSaved(0, generation, step)


def kinds(driver: JobDriver) -> list[str]:
    return [a.kind for a in driver.last_actions if isinstance(a, actions.TimelineEntry)]


def sleep(driver: JobDriver, seconds: float) -> list[str]:
    """Let time pass, waking up exactly when `step` said. Returns the timeline entries; fails if it wakes in a loop."""
    end, entries, rounds = driver.now + seconds, [], 0
    while driver.wake_at is not None and driver.wake_at <= end:
        driver.tick(max(0.0, driver.wake_at - driver.now))
        entries += kinds(driver)
        rounds += 1
        assert rounds < 100, f"it wakes again and again at {driver.now}"
    driver.now = end
    return entries


def test_steps_that_stand_still__are_told_and_then_restarted() -> None:
    driver = new_job(recovery=RESTARTS).running()
    driver.send(step_saved(10), 60.0)
    assert sleep(driver, 599) == []
    assert sleep(driver, 2) == ["task.stuck"]
    assert driver.task.stuck_since is not None
    assert "no step was reported after step 10" in driver.task.message
    assert driver.task.state is TaskState.RUNNING
    assert "attempt.failed" in sleep(driver, 600)
    assert driver.task.attempts[0].reason is Reason.STUCK
    assert driver.task.stuck_since is None
    assert driver.task.message == ""


def test_progress__clears_the_mark() -> None:
    driver = new_job(recovery=RESTARTS).running()
    driver.send(step_saved(10))
    sleep(driver, 700)
    assert driver.task.stuck_since is not None
    driver.send(step_saved(11))
    assert (driver.task.stuck_since, driver.task.message) == (None, "")
    assert sleep(driver, 599) == []
    assert driver.task.state is TaskState.RUNNING


def test_same_step_again__is_no_progress() -> None:
    driver = new_job(recovery=RESTARTS).running()
    driver.send(step_saved(10))
    driver.send(step_saved(10), 500.0)
    assert sleep(driver, 101) == ["task.stuck"]


def test_idle_gpus__count_although_steps_are_saved() -> None:
    driver = new_job(recovery=RESTARTS).running()
    driver.send(events.GpusReported(0, 1, busy=False))
    for step in range(6):
        driver.send(step_saved(step), 100.0)
        driver.send(events.GpusReported(0, 1, busy=False))
    assert driver.task.stuck_since is not None
    assert "GPUs are idle" in driver.task.message
    for step in range(6, 13):
        driver.send(step_saved(step), 100.0)
        driver.send(events.GpusReported(0, 1, busy=False))
    assert driver.task.attempts[0].reason is Reason.STUCK


def test_gpus_without_reports__do_not_count_as_idle() -> None:
    """The node may be connected to another controller, or its monitor may have ended."""
    driver = new_job(recovery=RESTARTS).running()
    driver.send(events.GpusReported(0, 1, busy=True))
    driver.send(events.GpusReported(0, 1, busy=False), 60.0)
    for step in range(30):
        driver.send(step_saved(step), 100.0)
        assert driver.task.stuck_since is None, step


def test_busy_gpus__do_not_hide_steps_that_stand_still() -> None:
    """A collective operation that waits for ever keeps its GPU at 100 %."""
    driver = new_job(recovery=RESTARTS).running()
    driver.send(step_saved(1))
    for _ in range(11):
        driver.send(events.GpusReported(0, 1, busy=True), 60.0)
    assert driver.task.stuck_since is not None


def test_task_without_evidence__is_never_stuck() -> None:
    driver = new_job(recovery=RESTARTS).running()
    assert sleep(driver, 100_000) == []
    assert driver.task.state is TaskState.RUNNING


def test_task_without_limits__is_never_stuck() -> None:
    driver = new_job().running()
    driver.send(step_saved(1))
    assert sleep(driver, 100_000) == []


def test_new_run__gets_its_whole_time() -> None:
    driver = new_job(recovery=RESTARTS).running()
    driver.send(step_saved(10))
    sleep(driver, 1201)
    driver.report(NodePhase.ENDED, generation=1, interrupted=True)
    generation = driver.attempt.generation
    assert generation == 2
    driver.launched().report(NodePhase.BOOTED).report(NodePhase.READY).report(NodePhase.RUNNING)
    assert driver.task.state is TaskState.RUNNING
    assert sleep(driver, 599) == []
    assert sleep(driver, 2) == ["task.stuck"], "the old run has shown that it saves steps"


def test_report_of_another_attempt__changes_nothing() -> None:
    driver = new_job(recovery=RESTARTS).running()
    before = driver.task
    driver.send(step_saved(10, generation=7)).send(step_saved(2**60)).send(events.GpusReported(0, 9, busy=True))
    assert driver.task == before


def test_max_duration__ends_the_task_with_time_to_save() -> None:
    driver = new_job(recovery=Recovery(max_duration_s=3600.0)).running()
    sleep(driver, 3599)
    assert driver.task.state is TaskState.RUNNING
    sleep(driver, 2)
    assert driver.task.outcome is Reason.MAX_DURATION
    assert driver.attempt.drain_until is not None
    driver.report(NodePhase.ENDED, interrupted=True)
    assert driver.task.status is Status.FAILED
    assert "max_duration" in driver.task.message


def test_max_duration__counts_while_the_task_waits() -> None:
    driver = new_job(recovery=Recovery(max_duration_s=3600.0)).running()
    driver.send(events.PreemptionNotice(0, 1, 0, driver.now + 30))
    driver.report(NodePhase.ENDED, generation=1, interrupted=True)
    sleep(driver, 3601)
    assert driver.task.outcome is Reason.MAX_DURATION


def test_max_run__counts_only_while_the_task_runs() -> None:
    driver = new_job(recovery=Recovery(max_run_s=3600.0)).running()
    sleep(driver, 1800)
    driver.send(events.PreemptionNotice(0, 1, 0, driver.now + 30))
    driver.report(NodePhase.ENDED, generation=1, interrupted=True)
    sleep(driver, 3601)
    assert driver.task.outcome is None, "it waits for a machine"
    driver.running()
    sleep(driver, 1700)
    assert driver.task.outcome is None
    sleep(driver, 200)
    assert driver.task.outcome is Reason.MAX_DURATION
    driver.report(NodePhase.ENDED, interrupted=True)
    assert driver.task.status is Status.FAILED


def test_max_run__adds_up_the_runs_between_three_preemptions() -> None:
    driver = new_job(recovery=Recovery(max_run_s=3600.0)).running()
    for generation in (1, 2, 3):
        sleep(driver, 900)
        driver.send(events.PreemptionNotice(0, generation, 0, driver.now + 30))
        driver.report(NodePhase.ENDED, generation=generation, interrupted=True)
        sleep(driver, 700)
        driver.running()
    sleep(driver, 890)
    assert driver.task.outcome is None
    sleep(driver, 20)
    assert driver.task.outcome is Reason.MAX_DURATION
    driver.report(NodePhase.ENDED, interrupted=True)
    assert driver.task.status is Status.FAILED
    assert "max_duration" in driver.task.message


@pytest.mark.parametrize("nodes", [1, 4])
def test_max_cost__warns_and_ends(nodes: int) -> None:
    """The cheapest offer costs 0.10 USD per hour and node."""
    driver = new_job(nodes=nodes, recovery=Recovery(max_cost=0.1 * nodes)).running()
    assert sleep(driver, 0.79 * 3600) == []
    assert sleep(driver, 0.02 * 3600) == ["task.budget_warning"]
    assert driver.task.state is TaskState.RUNNING
    sleep(driver, 0.18 * 3600)
    assert driver.task.state is TaskState.RUNNING
    sleep(driver, 0.02 * 3600)
    assert driver.task.outcome is Reason.MAX_COST
    driver.report(NodePhase.ENDED, interrupted=True)
    assert driver.task.status is Status.FAILED


def test_max_cost__includes_attempts_that_are_gone() -> None:
    driver = new_job(recovery=Recovery(max_cost=0.1)).running()
    sleep(driver, 1800)
    driver.send(events.MachinesDescribed(0, 1, {0: Reason.PREEMPTED}))
    driver.send(events.AttemptGone(0, 1))
    assert driver.task.spent_usd == pytest.approx(0.05, abs=0.001)
    driver.launched().report(NodePhase.BOOTED).report(NodePhase.READY).report(NodePhase.RUNNING)
    # The next zone costs 0.12 USD per hour: what is left lasts for 25 minutes.
    sleep(driver, 24 * 60)
    assert driver.task.outcome is None
    sleep(driver, 2 * 60)
    assert driver.task.outcome is Reason.MAX_COST


def test_max_cost__counts_no_machine_that_was_refused() -> None:
    driver = new_job(recovery=Recovery(max_cost=0.1)).tick()
    sleep(driver, 100)
    assert driver.task.spent_usd == 0.0


def test_max_cost__spent_before_the_first_run_buys_no_more() -> None:
    """Machines that boot and never call cost money, too. The task waits for its next attempt when all is spent."""
    driver = new_job(recovery=Recovery(max_cost=0.1))
    driver.job = replace(driver.job, tasks=(replace(driver.task, spent_usd=0.1),))
    driver.tick()
    assert driver.actions_of(actions.Launch) == []
    assert driver.task.outcome is Reason.MAX_COST
    assert driver.task.status is Status.FAILED


@pytest.mark.parametrize(("amount", "text"), [(0.00001, "0.00001"), (500.0, "500"), (2500000.5, "2500000.5")])
def test_usd__has_no_exponent(amount: float, text: str) -> None:
    assert limits._usd(amount) == text
