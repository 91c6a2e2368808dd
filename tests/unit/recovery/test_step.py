"""The decision function, story by story: each test tells events and reads what the controller would do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from perdure.recovery import actions, events
from perdure.recovery.directive import Want, directive
from perdure.recovery.market import FaultKind, Refusal
from perdure.recovery.needs import Need
from perdure.recovery.reasons import Reason
from perdure.recovery.statuses import AttemptState, NodePhase, Status, TaskState
from stories import LIMITS, ZONES, a_story


def test_a_job_is_placed_where_it_is_cheapest_and_runs_when_every_node_is_ready() -> None:
    story = a_story(nodes=2).tick()
    assert [a.offer.zone for a in story.of(actions.Launch)] == ["east-a"]  # type: ignore[attr-defined]
    assert story.task.status is Status.STARTING
    story.launched()
    assert directive(story.attempt).want is Want.WAIT
    story.report(NodePhase.BOOTED, rank=0, ip="127.1.0.1")
    assert story.attempt.state is AttemptState.BOOTING
    story.report(NodePhase.BOOTED, rank=1, ip="127.1.0.2")
    assert directive(story.attempt).node_ips == ("127.1.0.1", "127.1.0.2")
    story.report(NodePhase.READY, rank=1)
    assert directive(story.attempt).want is Want.SETUP
    story.report(NodePhase.READY, rank=0)
    assert directive(story.attempt).want is Want.RUN
    assert story.task.status is Status.RUNNING


def test_success_needs_every_rank_and_ends_the_machines() -> None:
    story = a_story(nodes=2).running()
    story.report(NodePhase.ENDED, rank=0, exit_code=0)
    assert story.task.status is Status.RUNNING
    story.report(NodePhase.ENDED, rank=1, exit_code=0)
    assert story.task.status is Status.SUCCEEDED
    assert story.of(actions.Terminate)
    assert not story.job.is_settled
    story.tell(events.AttemptGone(0, 1))
    assert story.job.is_settled


def test_a_notice_drains_the_attempt_and_buys_its_replacement_in_the_same_step() -> None:
    story = a_story().running()
    story.tell(events.NoticeGiven(0, 1, 0, deadline=story.now + 20))
    first, second = story.task.attempts
    assert directive(first).want is Want.DRAIN
    assert directive(first).deadline == story.now + 20
    assert second.offer.zone == "east-b"
    assert story.of(actions.Launch)
    assert story.task.status is Status.RECOVERING
    assert story.task.recovery_count == 1


def test_the_replacement_runs_only_after_the_old_workload_has_stopped() -> None:
    story = a_story().running()
    story.tell(events.NoticeGiven(0, 1, 0, deadline=story.now + 20))
    story.launched().report(NodePhase.BOOTED).report(NodePhase.READY)
    assert story.attempt.state is AttemptState.READY
    story.report(NodePhase.ENDED, generation=1, interrupted=True, exit_code=143)
    assert story.attempt.state is AttemptState.RUNNING
    assert any(isinstance(a, actions.Terminate) and a.generation == 1 for a in story.did)


def test_a_drained_node_that_dies_also_lets_the_replacement_run() -> None:
    story = a_story().running()
    story.tell(events.NoticeGiven(0, 1, 0, deadline=story.now + 20))
    story.launched().report(NodePhase.BOOTED).report(NodePhase.READY)
    story.tell(events.MachinesSeen(0, 1, {0: Reason.PREEMPTED}))
    assert story.attempt.state is AttemptState.RUNNING


def test_a_drain_that_does_not_end_is_ended_by_the_machine() -> None:
    story = a_story().running()
    story.tell(events.NoticeGiven(0, 1, 0, deadline=story.now + 20)).launched()
    story.tick(22)
    assert not story.of(actions.Terminate)
    story.tick(1)
    assert [a.generation for a in story.of(actions.Terminate)] == [1]  # type: ignore[attr-defined]


def test_finishing_during_the_drain_is_success_and_the_replacement_is_given_back() -> None:
    story = a_story().running()
    story.tell(events.NoticeGiven(0, 1, 0, deadline=story.now + 20)).launched()
    story.report(NodePhase.ENDED, generation=1, exit_code=0)
    assert story.job.tasks[0].status is Status.SUCCEEDED
    assert {a.generation for a in story.of(actions.Terminate)} == {1, 2}  # type: ignore[attr-defined]


def test_a_machine_that_vanishes_is_replaced_at_once_elsewhere() -> None:
    story = a_story().running()
    story.tell(events.NodeSilent(0, 1, 0))
    assert story.of(actions.Check)
    assert story.task.status is Status.RUNNING, "a broken connection alone proves nothing"
    story.tell(events.MachinesSeen(0, 1, {0: Reason.PREEMPTED}))
    assert story.task.status is Status.RECOVERING
    assert story.attempt.generation == 2
    assert story.attempt.offer.zone == "east-b"


def test_a_machine_for_which_there_is_no_room_after_all_is_a_launch_refused_late() -> None:
    story = a_story().tick().launched()
    story.tell(events.MachinesSeen(0, 1, {0: Reason.NO_CAPACITY}), after_s=5)
    assert [a.generation for a in story.of(actions.Terminate)] == [1]  # type: ignore[attr-defined]
    (refusal,) = story.refusals
    assert (refusal.zone, refusal.from_preemption) == ("east-a", False)
    assert refusal.until - story.now == 180.0, "as long as a launch that was refused at once"
    assert story.task.recovery_count == 0
    assert story.attempt.offer.zone == "east-b"


def test_a_silent_node_whose_machine_lives_is_left_alone_and_looked_up_again() -> None:
    story = a_story().running().tell(events.NodeSilent(0, 1, 0))
    story.tell(events.MachinesSeen(0, 1, {0: None}))
    asked = 0
    for _ in range(40):
        story.tick(story.wake_at - story.now if story.wake_at else 0)
        asked += len(story.of(actions.Check))
        story.tell(events.MachinesSeen(0, 1, {0: None}))
        if story.now >= 1030:
            break
    assert 6 <= asked <= 12, "often at first, then every recheck_s"
    story.report(NodePhase.RUNNING)
    assert story.task.status is Status.RUNNING
    assert story.task.recovery_count == 0
    assert len(story.task.attempts) == 1


def test_silence_for_too_long_is_a_loss_but_the_next_run_waits_for_the_machine_to_be_gone() -> None:
    story = a_story().running().tell(events.NodeSilent(0, 1, 0)).tick(LIMITS.silent_s)
    assert story.attempt.generation == 2
    story.launched().report(NodePhase.BOOTED).report(NodePhase.READY)
    assert story.attempt.state is AttemptState.READY
    story.tick(LIMITS.drain_s + 5)
    assert [a.generation for a in story.of(actions.Terminate)] == [1]  # type: ignore[attr-defined]
    assert story.attempt.state is AttemptState.READY
    story.tell(events.AttemptGone(0, 1))
    assert story.attempt.state is AttemptState.RUNNING


@pytest.mark.parametrize("grace_s", [0.0, 20.0])
def test_cancel_ends_when_the_workload_has_stopped(grace_s: float) -> None:
    story = a_story().running().tell(events.CancelRequested(grace_s))
    assert story.task.status is Status.CANCELLING
    assert bool(story.of(actions.Terminate)) is (grace_s == 0)
    story.report(NodePhase.ENDED, interrupted=True)
    assert story.task.status is Status.CANCELLED
    assert story.job.has_ended


def test_cancel_while_a_launch_is_under_way_still_gives_its_machines_back() -> None:
    story = a_story().tick().tell(events.CancelRequested(30))
    assert story.job.tasks[0].status is Status.CANCELLED, "nothing runs, so there is nothing to wait for"
    assert [a.generation for a in story.of(actions.Terminate)] == [1]  # type: ignore[attr-defined]
    assert not story.job.is_settled
    story.tell(events.Launched(0, 1, (events.Machine(0, "i-late"),)))
    assert not story.job.is_settled
    story.tell(events.AttemptGone(0, 1))
    assert story.job.is_settled


def test_a_second_cancel_without_grace_hurries_the_first() -> None:
    story = a_story().running().tell(events.CancelRequested(600))
    assert not story.of(actions.Terminate)
    story.tell(events.CancelRequested(0))
    assert story.of(actions.Terminate)


def test_a_refused_launch_tries_the_next_offer_at_once() -> None:
    story = a_story().tick()
    no = Refusal("local", story.now + 300, FaultKind.AVOID_ZONE, story.now, "east", "east-a", code="NoCapacity")
    story.tell(events.LaunchRefused(0, 1, no))
    assert story.attempt.generation == 2
    assert story.attempt.offer.zone == "east-b"
    assert story.task.recovery_count == 0


def test_when_everything_is_refused_the_job_waits_for_the_first_to_come_back() -> None:
    story = a_story().tick()
    for generation, zone in enumerate(ZONES, start=1):
        no = Refusal("local", story.now + 100 * generation, FaultKind.AVOID_ZONE, story.now, None, zone)
        story.tell(events.LaunchRefused(0, generation, no))
    assert story.task.state is TaskState.WAITING
    assert story.task.status is Status.PENDING
    assert story.wake_at is not None
    assert story.wake_at <= story.now + 100
    story.tick(story.wake_at - story.now)
    assert story.of(actions.Launch)


def test_no_offer_that_can_ever_fit_ends_the_job_at_once_with_the_reasons() -> None:
    story = a_story()
    story.job = story.job.with_task(replace(story.task, needs=(Need(accelerators=("H100", 8)),)))
    story.tick()
    assert story.task.status is Status.FAILED_NO_RESOURCE
    assert "H100" in story.task.message


def test_a_machine_that_never_calls_is_given_up() -> None:
    story = a_story().tick().launched().tick(LIMITS.boot_timeout_s)
    assert story.attempt.generation == 2
    assert story.task.recovery_count == 0, "nothing had run that could be recovered"
    assert [a.generation for a in story.of(actions.Terminate)] == [1]  # type: ignore[attr-defined]


def test_a_lost_mount_recovers_the_task() -> None:
    story = a_story().running().report(NodePhase.RUNNING, mount_lost=True)
    assert story.task.status is Status.RECOVERING
    assert directive(story.task.attempts[0]).want is Want.DRAIN


def test_storage_is_prepared_before_anything_is_bought() -> None:
    story = a_story()
    story.job = story.job.with_task(replace(story.task, storage_ready=False))
    story.tick()
    assert story.of(actions.PrepareStorage)
    assert not story.of(actions.Launch)
    story.tell(events.StorageReady(0))
    assert story.of(actions.Launch)


def test_storage_that_can_not_be_had_ends_the_job() -> None:
    story = a_story()
    story.job = story.job.with_task(replace(story.task, storage_ready=False))
    story.tick().tell(events.StorageFailed(0, "bucket belongs to somebody else"))
    assert story.task.status is Status.FAILED_PRECHECKS
    assert "somebody else" in story.task.message


def test_a_pipeline_goes_on_after_success_and_stops_after_failure() -> None:
    story = a_story(tasks=3).running().report(NodePhase.ENDED, exit_code=0)
    assert story.task.index == 1
    assert [a.task for a in story.of(actions.Launch)] == [1]  # type: ignore[attr-defined]
    story.launched().report(NodePhase.BOOTED).report(NodePhase.READY)
    story.report(NodePhase.ENDED, failed_stage="run", exit_code=2)
    assert [t.status for t in story.job.tasks] == [Status.SUCCEEDED, Status.FAILED, Status.CANCELLED]


def test_terminal_statuses_never_change() -> None:
    story = a_story().running().report(NodePhase.ENDED, exit_code=0)
    ended = story.job.tasks[0]
    story.tell(events.CancelRequested(0)).tell(events.NodeSilent(0, 1, 0))
    story.tell(events.MachinesSeen(0, 1, {0: Reason.MACHINE_CRASHED}))
    assert story.job.tasks[0].status is Status.SUCCEEDED
    assert story.job.tasks[0].ended_at == ended.ended_at


def test_nodes_of_an_attempt_that_is_gone_are_ignored() -> None:
    story = a_story().running().tell(events.MachinesSeen(0, 1, {0: Reason.PREEMPTED}))
    before = story.task.attempts[-1]
    story.report(NodePhase.RUNNING, generation=1)
    assert story.task.attempts[-1] == before
