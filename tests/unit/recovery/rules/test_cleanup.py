"""`rules.cleanup`: attempts on their way out."""

from __future__ import annotations

import pytest

from perdure.recovery import actions, events
from perdure.recovery.directive import Target, directive_for
from perdure.recovery.job import Recovery
from perdure.recovery.reasons import Reason
from perdure.recovery.statuses import NodePhase, Status
from support.worlds.job_driver import JobDriver, new_job


def test_drain__overdue_terminates_machine() -> None:
    driver = new_job().running()
    driver.send(events.PreemptionNotice(0, 1, 0, deadline=driver.now + 20)).launched()
    driver.tick(22)
    assert not driver.actions_of(actions.Terminate)
    driver.tick(1)
    assert [a.generation for a in driver.actions_of(actions.Terminate)] == [1]  # type: ignore[attr-defined]


KEPT = Recovery(keep_on_failure_s=1800)


def a_failure(recovery: Recovery = KEPT, **failed: object) -> JobDriver:
    driver = new_job(recovery=recovery).running()
    return driver.report(NodePhase.ENDED, **{"failed_stage": "run", "exit_code": 3, **failed})


@pytest.mark.parametrize(("stage", "status"), [("run", Status.FAILED), ("setup", Status.FAILED_SETUP)])
def test_kept_machines__of_a_failed_task_end_after_the_time(stage: str, status: Status) -> None:
    driver = a_failure(failed_stage=stage)
    assert driver.task.status is status
    assert not driver.actions_of(actions.Terminate)
    assert driver.wake_at == driver.now + 1800
    assert directive_for(driver.attempt).target is Target.DRAIN, "the agent stays, and starts nothing"
    assert not driver.tick(after_s=1799).actions_of(actions.Terminate)
    assert driver.tick(after_s=1).actions_of(actions.Terminate)
    assert directive_for(driver.attempt).target is Target.STOP
    assert driver.task.status is status


def test_kept_machines__are_announced_with_their_price() -> None:
    driver = a_failure()
    (entry,) = [a for a in driver.last_actions if isinstance(a, actions.TimelineEntry) and a.kind == "attempt.kept"]
    assert "30 min" in entry.message
    assert "per hour" in entry.message
    assert entry.data == {"until": driver.now + 1800}


def test_kept_machines__end_with_a_cancel_and_the_status_stays() -> None:
    driver = a_failure().send(events.CancelRequested(60.0), after_s=10)
    assert driver.actions_of(actions.Terminate)
    assert driver.task.status is Status.FAILED


def test_kept_machines__that_are_gone_are_not_awaited() -> None:
    driver = a_failure().send(events.MachinesDescribed(0, 1, {0: Reason.PREEMPTED}), after_s=10)
    assert driver.actions_of(actions.Terminate)
    assert driver.task.status is Status.FAILED


def test_kept_machines__are_not_those_of_other_ends() -> None:
    assert new_job(recovery=KEPT).running().report(NodePhase.ENDED, exit_code=0).actions_of(actions.Terminate)
    cancelled = new_job(recovery=KEPT).running().send(events.CancelRequested(0.0)).tick(after_s=60)
    assert cancelled.attempt.terminating
    cancelled = new_job(recovery=KEPT).running().send(events.CancelRequested(60.0)).report(NodePhase.ENDED, exit_code=1)
    assert cancelled.actions_of(actions.Terminate)
    assert a_failure(Recovery()).actions_of(actions.Terminate)
    restarted = a_failure(Recovery(keep_on_failure_s=1800, max_restarts_on_errors=1))
    assert restarted.actions_of(actions.Terminate), "the attempt that is restarted elsewhere is not the last one"


def test_kept_machines__of_several_nodes_are_kept_together() -> None:
    driver = new_job(nodes=2, recovery=KEPT).running()
    driver.report(NodePhase.ENDED, rank=1, failed_stage="run", exit_code=1)
    driver.report(NodePhase.ENDED, rank=0, exit_code=0)
    assert driver.task.status is Status.FAILED
    assert not driver.tick().actions_of(actions.Terminate)
    assert driver.tick(after_s=1800).actions_of(actions.Terminate)
