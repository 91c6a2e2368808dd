"""`rules.succeed_or_cancel`: success, cancellation, and the end of a task."""

from __future__ import annotations

import pytest

from perdure.recovery import actions, events
from perdure.recovery.statuses import AttemptState, NodePhase, Status
from support.worlds.job_driver import new_job


def test_succeed__needs_every_rank_and_terminates_machines() -> None:
    driver = new_job(nodes=2).running()
    driver.report(NodePhase.ENDED, rank=0, exit_code=0)
    assert driver.task.status is Status.RUNNING
    driver.report(NodePhase.ENDED, rank=1, exit_code=0)
    assert driver.task.status is Status.SUCCEEDED
    assert driver.actions_of(actions.Terminate)
    assert not driver.job.is_finalized
    driver.send(events.AttemptGone(0, 1))
    assert driver.job.is_finalized


def test_succeed__during_drain_terminates_next_attempt() -> None:
    driver = new_job().running()
    driver.send(events.PreemptionNotice(0, 1, 0, deadline=driver.now + 20)).launched()
    driver.report(NodePhase.ENDED, generation=1, exit_code=0)
    assert driver.job.tasks[0].status is Status.SUCCEEDED
    assert {a.generation for a in driver.actions_of(actions.Terminate)} == {1, 2}  # type: ignore[attr-defined]


def test_succeed__needs_permission_to_run() -> None:
    driver = new_job().tick().launched().report(NodePhase.BOOTED)
    driver.send(events.PreemptionNotice(0, 1, 0, deadline=driver.now + 20))
    driver.report(NodePhase.ENDED, generation=1, exit_code=0)
    assert driver.task.status is Status.STARTING
    assert driver.attempt.generation == 2


@pytest.mark.parametrize("phase", [NodePhase.BOOTED, NodePhase.MOUNTING])
def test_succeed__is_not_believed_of_node_that_has_not_run(phase: NodePhase) -> None:
    driver = new_job().tick().launched().report(phase).report(NodePhase.ENDED, exit_code=0)
    assert [a.state for a in driver.task.attempts] == [AttemptState.STOPPED, AttemptState.REQUESTED]
    assert driver.task.status is Status.STARTING


@pytest.mark.parametrize("grace_s", [0.0, 20.0])
def test_cancel__ends_when_workload_has_stopped(grace_s: float) -> None:
    driver = new_job().running().send(events.CancelRequested(grace_s))
    assert driver.task.status is Status.CANCELLING
    assert bool(driver.actions_of(actions.Terminate)) is (grace_s == 0)
    driver.report(NodePhase.ENDED, interrupted=True)
    assert driver.task.status is Status.CANCELLED
    assert driver.job.has_ended


def test_cancel__during_launch_terminates_late_machines() -> None:
    driver = new_job().tick().send(events.CancelRequested(30))
    assert driver.job.tasks[0].status is Status.CANCELLED, "nothing runs, so there is nothing to wait for"
    assert [a.generation for a in driver.actions_of(actions.Terminate)] == [1]  # type: ignore[attr-defined]
    assert not driver.job.is_finalized
    driver.send(events.Launched(0, 1, (events.Machine(0, "i-late"),)))
    assert not driver.job.is_finalized
    driver.send(events.AttemptGone(0, 1))
    assert driver.job.is_finalized


def test_cancel__second_without_grace_shortens_first() -> None:
    driver = new_job().running().send(events.CancelRequested(600))
    assert not driver.actions_of(actions.Terminate)
    driver.send(events.CancelRequested(0))
    assert driver.actions_of(actions.Terminate)
