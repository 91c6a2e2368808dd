"""`rules.machine_loss.response`: losses of machines."""

from __future__ import annotations

from perdure.recovery import actions, events
from perdure.recovery.directive import Target, directive_for
from perdure.recovery.job import Recovery
from perdure.recovery.reasons import Reason
from perdure.recovery.statuses import AttemptState, NodePhase, Status
from support.worlds.job_driver import TIMEOUTS, new_job


def test_preemption_notice__drains_attempt_and_launches_next_at_once() -> None:
    driver = new_job().running()
    driver.send(events.PreemptionNotice(0, 1, 0, deadline=driver.now + 20))
    first, second = driver.task.attempts
    assert directive_for(first).target is Target.DRAIN
    assert directive_for(first).deadline == driver.now + 20
    assert second.offer.zone == "east-b"
    assert driver.actions_of(actions.Launch)
    assert driver.task.status is Status.RECOVERING
    assert driver.task.recovery_count == 1


def test_later_notice__with_an_earlier_deadline_shortens_the_drain() -> None:
    driver = new_job(nodes=2).running()
    driver.send(events.PreemptionNotice(0, 1, 0, deadline=driver.now + 58))
    driver.send(events.PreemptionNotice(0, 1, 0, deadline=driver.now + 28, confirmed=True))
    first = driver.task.attempts[0]
    assert directive_for(first).deadline == driver.now + 28
    driver.send(events.PreemptionNotice(0, 1, 0, deadline=driver.now + 58))
    driver.send(events.PreemptionNotice(0, 1, 1, deadline=driver.now + 40))
    first = driver.task.attempts[0]
    assert directive_for(first).deadline == driver.now + 28, "a later deadline changes nothing"
    assert [node.notice_deadline for node in first.nodes] == [driver.now + 28, driver.now + 40]
    driver.send(events.PreemptionNotice(0, 1, 1, deadline=driver.now + 10))
    assert directive_for(driver.task.attempts[0]).deadline == driver.now + 10, "the first machine that goes ends it"
    assert driver.task.recovery_count == 1


def test_notice__gives_its_whole_time_to_a_task_that_does_not_recover() -> None:
    driver = new_job(recovery=Recovery(recovers=False)).running()
    driver.send(events.PreemptionNotice(0, 1, 0, deadline=driver.now + 120))
    (attempt,) = driver.task.attempts
    assert directive_for(attempt).deadline == driver.now + 120 > driver.now + TIMEOUTS.drain_timeout_s
    assert driver.task.outcome is Reason.NOT_RECOVERED


def test_next_attempt__runs_only_after_old_workload_has_stopped() -> None:
    driver = new_job().running()
    driver.send(events.PreemptionNotice(0, 1, 0, deadline=driver.now + 20))
    driver.launched().report(NodePhase.BOOTED).report(NodePhase.READY)
    assert driver.attempt.state is AttemptState.READY
    driver.report(NodePhase.ENDED, generation=1, interrupted=True, exit_code=143)
    assert driver.attempt.state is AttemptState.RUNNING
    assert any(isinstance(a, actions.Terminate) and a.generation == 1 for a in driver.last_actions)


def test_next_attempt__runs_once_draining_machine_is_gone() -> None:
    driver = new_job().running()
    driver.send(events.PreemptionNotice(0, 1, 0, deadline=driver.now + 20))
    driver.launched().report(NodePhase.BOOTED).report(NodePhase.READY)
    driver.send(events.MachinesDescribed(0, 1, {0: Reason.PREEMPTED}))
    assert driver.attempt.state is AttemptState.RUNNING


def test_lost_machine__is_replaced_elsewhere() -> None:
    driver = new_job().running()
    driver.send(events.NodeDisconnected(0, 1, 0))
    assert driver.actions_of(actions.DescribeMachines)
    assert driver.task.status is Status.RUNNING, "a broken connection alone proves nothing"
    driver.send(events.MachinesDescribed(0, 1, {0: Reason.PREEMPTED}))
    assert driver.task.status is Status.RECOVERING
    assert driver.attempt.generation == 2
    assert driver.attempt.offer.zone == "east-b"


def test_lost_machine__without_capacity_counts_as_refused_launch() -> None:
    driver = new_job().tick().launched()
    driver.send(events.MachinesDescribed(0, 1, {0: Reason.NO_CAPACITY}), after_s=5)
    assert [a.generation for a in driver.actions_of(actions.Terminate)] == [1]  # type: ignore[attr-defined]
    (refusal,) = driver.refusals
    assert (refusal.zone, refusal.from_preemption) == ("east-a", False)
    assert refusal.until - driver.now == 180.0, "as long as after a launch that was refused at once"
    assert driver.task.recovery_count == 0
    assert driver.attempt.offer.zone == "east-b"


def test_disconnected_node__is_kept_while_its_machine_exists() -> None:
    driver = new_job().running().send(events.NodeDisconnected(0, 1, 0))
    driver.send(events.MachinesDescribed(0, 1, {0: None}))
    queries = 0
    for _ in range(40):
        driver.tick(driver.wake_at - driver.now if driver.wake_at else 0)
        queries += len(driver.actions_of(actions.DescribeMachines))
        driver.send(events.MachinesDescribed(0, 1, {0: None}))
        if driver.now >= 1030:
            break
    assert 6 <= queries <= 12, "often at first, then every describe_interval_s"
    driver.report(NodePhase.RUNNING)
    assert driver.task.status is Status.RUNNING
    assert driver.task.recovery_count == 0
    assert len(driver.task.attempts) == 1


def test_disconnected_node__is_lost_after_timeout_but_next_attempt_waits_for_machine_to_be_gone() -> None:
    driver = new_job().running().send(events.NodeDisconnected(0, 1, 0)).tick(TIMEOUTS.node_timeout_s)
    assert driver.attempt.generation == 2
    driver.launched().report(NodePhase.BOOTED).report(NodePhase.READY)
    assert driver.attempt.state is AttemptState.READY
    driver.tick(TIMEOUTS.drain_timeout_s + 5)
    assert [a.generation for a in driver.actions_of(actions.Terminate)] == [1]  # type: ignore[attr-defined]
    assert driver.attempt.state is AttemptState.READY
    driver.send(events.AttemptGone(0, 1))
    assert driver.attempt.state is AttemptState.RUNNING


def test_boot_timeout__gives_up_machine() -> None:
    driver = new_job().tick().launched().tick(TIMEOUTS.boot_timeout_s)
    assert driver.attempt.generation == 2
    assert driver.task.recovery_count == 0, "nothing of the user's had begun"
    assert [a.generation for a in driver.actions_of(actions.Terminate)] == [1]  # type: ignore[attr-defined]


def test_lost_mount__recovers_task() -> None:
    driver = new_job().running().report(NodePhase.RUNNING, mount_lost=True)
    assert driver.task.status is Status.RECOVERING
    assert directive_for(driver.task.attempts[0]).target is Target.DRAIN
