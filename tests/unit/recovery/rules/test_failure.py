"""`rules.failure`: failures of a rank, which may be the consequence of a loss."""

from __future__ import annotations

import pytest

from perdure.recovery import actions, events
from perdure.recovery.directive import Target, directive_for
from perdure.recovery.job import Recovery
from perdure.recovery.reasons import Reason
from perdure.recovery.statuses import NodePhase, Status
from support.worlds.job_driver import TIMEOUTS, JobDriver, new_job


def test_failure__of_run_fails_task_with_exit_code() -> None:
    driver = new_job().running().report(NodePhase.ENDED, failed_stage="run", exit_code=3)
    assert driver.task.status is Status.FAILED
    assert "code 3" in driver.task.message
    assert not driver.actions_of(actions.Launch)


def test_failure__of_setup_has_own_status() -> None:
    driver = new_job().tick().launched().report(NodePhase.BOOTED)
    driver.report(NodePhase.ENDED, failed_stage="setup", exit_code=1)
    assert driver.task.status is Status.FAILED_SETUP


def test_failure__of_setup_lets_nothing_run() -> None:
    driver = new_job(nodes=2).tick().launched().report(NodePhase.BOOTED)
    driver.report(NodePhase.FLUSHING, rank=1).report(NodePhase.READY, rank=0)
    assert directive_for(driver.attempt).target is Target.SETUP
    driver.report(NodePhase.ENDED, rank=1, failed_stage="setup", exit_code=1)
    driver.report(NodePhase.READY, rank=0)
    assert directive_for(driver.attempt).target is Target.SETUP
    driver.send(ALL_EXIST)
    assert directive_for(driver.attempt).target is Target.DRAIN
    assert driver.task.status is Status.STARTING
    driver.report(NodePhase.ENDED, rank=0, interrupted=True)
    assert driver.task.status is Status.FAILED_SETUP


@pytest.mark.parametrize("stage", ["", "files", ["run"]])
def test_failure__of_unknown_stage_counts_as_run(stage: str) -> None:
    driver = new_job().running().report(NodePhase.ENDED, failed_stage=stage)
    assert driver.task.outcome is Reason.RUN_FAILED


def test_failure__is_known_once_node_has_ended() -> None:
    driver = new_job().running().report(NodePhase.RUNNING, failed_stage="run", exit_code=1)
    assert driver.attempt.failing_since is None
    assert driver.task.status is Status.RUNNING


def a_failed_rank(nodes: int = 2) -> JobDriver:
    return new_job(nodes=nodes).running().report(NodePhase.ENDED, rank=1, failed_stage="run", exit_code=1)


RECONNECTS = events.NodeReported(0, 1, 0, NodePhase.RUNNING)
DISCONNECTS = events.NodeDisconnected(0, 1, 0)
ENDS = events.NodeReported(0, 1, 0, NodePhase.ENDED, exit_code=0)
ALL_EXIST = events.MachinesDescribed(0, 1, {0: None, 1: None})
PREEMPTED = events.MachinesDescribed(0, 1, {0: Reason.PREEMPTED, 1: None})


@pytest.mark.parametrize(
    ("received", "status", "target"),
    [
        ([], Status.RUNNING, Target.RUN),
        ([RECONNECTS], Status.RUNNING, Target.RUN),  # the cloud has not described its machine yet
        ([ALL_EXIST], Status.RUNNING, Target.RUN),  # its machine may have died silently
        ([ALL_EXIST, ALL_EXIST, ALL_EXIST], Status.RUNNING, Target.RUN),
        ([ALL_EXIST, RECONNECTS], Status.RUNNING, Target.DRAIN),
        ([RECONNECTS, ALL_EXIST], Status.RUNNING, Target.DRAIN),
        ([RECONNECTS, DISCONNECTS, ALL_EXIST], Status.RUNNING, Target.RUN),
        ([ALL_EXIST, DISCONNECTS, RECONNECTS], Status.RUNNING, Target.DRAIN),
        ([ENDS], Status.FAILED, Target.STOP),  # by itself: every rank has ended
        ([PREEMPTED], Status.RECOVERING, None),
        ([RECONNECTS, PREEMPTED], Status.RECOVERING, None),
        ([ALL_EXIST, PREEMPTED], Status.RECOVERING, None),
    ],
)
def test_failure__waits_for_peers_to_reconnect_and_be_described(
    received: list[events.Event], status: Status, target: Target | None
) -> None:
    driver = a_failed_rank()
    assert driver.actions_of(actions.DescribeMachines)
    assert directive_for(driver.attempt).roll_call_at == driver.now
    for event in received:
        driver.send(event)
    assert driver.task.status is status
    assert target is None or directive_for(driver.task.attempts[0]).target is target


def test_failure__with_lost_peer_is_a_recovery() -> None:
    driver = a_failed_rank(nodes=3).send(ALL_EXIST).report(NodePhase.RUNNING, rank=2)
    waited_s = 0.0
    while driver.task.status is Status.RUNNING:
        assert driver.wake_at is not None
        waited_s += driver.wake_at - driver.now
        driver.tick(driver.wake_at - driver.now).send(events.MachinesDescribed(0, 1, {0: None, 1: None, 2: None}))
    assert driver.task.status is Status.RECOVERING
    assert waited_s == TIMEOUTS.node_timeout_s


def test_failure__on_one_node_fails_task_at_once() -> None:
    driver = new_job().running().report(NodePhase.ENDED, failed_stage="run", exit_code=1)
    assert not driver.actions_of(actions.DescribeMachines)
    assert driver.task.status is Status.FAILED


def test_restart_on_error__is_counted_and_limited() -> None:
    driver = new_job(recovery=Recovery(max_restarts_on_errors=1)).running()
    driver.report(NodePhase.ENDED, failed_stage="run", exit_code=1)
    assert driver.task.restarts_on_errors == 1
    assert driver.task.recovery_count == 0
    driver.launched().report(NodePhase.BOOTED).report(NodePhase.READY)
    driver.send(events.AttemptGone(0, 1))
    driver.report(NodePhase.ENDED, failed_stage="run", exit_code=1)
    assert driver.task.status is Status.FAILED


def test_restart_on_exit_code__is_not_counted() -> None:
    driver = new_job(recovery=Recovery(recover_on_exit_codes=frozenset({33}))).running()
    driver.report(NodePhase.ENDED, failed_stage="run", exit_code=33)
    assert driver.attempt.generation == 2
    assert driver.task.restarts_on_errors == 0
