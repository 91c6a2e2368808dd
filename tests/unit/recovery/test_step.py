"""`step`, scenario by scenario: each test sends events and checks what the controller would do."""

from __future__ import annotations

from perdure.recovery import actions, events
from perdure.recovery.directive import Target, directive_for
from perdure.recovery.job import Recovery
from perdure.recovery.market.view import Market, Offer
from perdure.recovery.reasons import Reason
from perdure.recovery.statuses import AttemptState, NodePhase, Status
from support.worlds.job_driver import new_job


def test_step__places_at_cheapest_offer_and_runs_when_all_nodes_are_ready() -> None:
    driver = new_job(nodes=2).tick()
    assert [a.offer.zone for a in driver.actions_of(actions.Launch)] == ["east-a"]  # type: ignore[attr-defined]
    assert driver.task.status is Status.STARTING
    driver.launched()
    assert directive_for(driver.attempt).target is Target.WAIT
    driver.report(NodePhase.BOOTED, rank=0, ip="127.1.0.1")
    assert driver.attempt.state is AttemptState.BOOTING
    driver.report(NodePhase.BOOTED, rank=1, ip="127.1.0.2")
    assert directive_for(driver.attempt).node_ips == ("127.1.0.1", "127.1.0.2")
    driver.report(NodePhase.READY, rank=1)
    assert directive_for(driver.attempt).target is Target.SETUP
    driver.report(NodePhase.READY, rank=0)
    assert directive_for(driver.attempt).target is Target.RUN
    assert driver.task.status is Status.RUNNING


def test_pipeline__continues_after_success_and_stops_after_failure() -> None:
    driver = new_job(tasks=3).running().report(NodePhase.ENDED, exit_code=0)
    assert driver.task.index == 1
    assert [a.task for a in driver.actions_of(actions.Launch)] == [1]  # type: ignore[attr-defined]
    driver.launched().report(NodePhase.BOOTED).report(NodePhase.READY)
    driver.report(NodePhase.ENDED, failed_stage="run", exit_code=2)
    assert [t.status for t in driver.job.tasks] == [Status.SUCCEEDED, Status.FAILED, Status.CANCELLED]


def test_terminal_status__never_changes() -> None:
    driver = new_job().running().report(NodePhase.ENDED, exit_code=0)
    ended = driver.job.tasks[0]
    driver.send(events.CancelRequested(0)).send(events.NodeDisconnected(0, 1, 0))
    driver.send(events.MachinesDescribed(0, 1, {0: Reason.MACHINE_CRASHED}))
    assert driver.job.tasks[0].status is Status.SUCCEEDED
    assert driver.job.tasks[0].ended_at == ended.ended_at


def test_node_report__of_gone_attempt_is_ignored() -> None:
    driver = new_job().running().send(events.MachinesDescribed(0, 1, {0: Reason.PREEMPTED}))
    before = driver.task.attempts[-1]
    driver.report(NodePhase.RUNNING, generation=1)
    assert driver.task.attempts[-1] == before


def test_lost_gang__counts_only_what_was_reported_durable() -> None:
    """The survivor stops when asked to. That it stopped says nothing about what it saved."""
    driver = new_job(nodes=2).running()
    began = driver.now
    driver.send(events.CheckpointDurable(0, 1, began + 600), after_s=600)
    driver.send(events.MachinesDescribed(0, 1, {1: Reason.PREEMPTED}), after_s=900)
    assert driver.task.attempts[0].state is AttemptState.DRAINING
    driver.report(NodePhase.ENDED, rank=0, generation=1, interrupted=True)
    assert driver.task.durable_s == driver.task.progress_s(driver.now) == 600


def test_directive__lets_background_processes_live_until_run_has_ended_on_every_node() -> None:
    driver = new_job(nodes=2).running()
    driver.report(NodePhase.RUNNING, rank=1, exit_code=0)
    assert directive_for(driver.attempt).target is Target.RUN
    driver.report(NodePhase.RUNNING, rank=0, exit_code=0)
    assert directive_for(driver.attempt).target is Target.FINISH
    driver.report(NodePhase.ENDED, rank=0, exit_code=0)
    assert directive_for(driver.attempt).target is Target.FINISH
    driver.report(NodePhase.ENDED, rank=1, exit_code=0)
    assert driver.job.tasks[0].status is Status.SUCCEEDED


def test_loss__ends_a_task_that_does_not_recover() -> None:
    driver = new_job(recovery=Recovery(recovers=False)).running()
    driver.send(events.MachinesDescribed(0, 1, {0: Reason.PREEMPTED}))
    assert driver.job.tasks[0].outcome is Reason.NOT_RECOVERED
    assert not driver.actions_of(actions.Launch)


def test_queued_job__waits_until_its_slot_is_granted() -> None:
    driver = new_job(recovery=Recovery(strategy="QUEUED")).tick()
    assert driver.job.tasks[0].status is Status.PENDING
    assert not driver.actions_of(actions.Launch), "the market has offers, but none is a slot of its cluster"
    driver.offers = (*driver.offers, Offer("cluster", "dev", "1", "slot", Market.ON_DEMAND, 0.0, 0.0, 0.5, 0.0))
    driver.send(events.SlotGranted(0))
    (launch,) = driver.actions_of(actions.Launch)
    assert isinstance(launch, actions.Launch)
    assert launch.offer.cloud == "cluster"
    driver.launched()
    assert not driver.actions_of(actions.RecordObservation), "a slot says nothing about the market"
