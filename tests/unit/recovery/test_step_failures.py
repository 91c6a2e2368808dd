"""Whose fault it is that a task failed: the user's program's, or that of a machine which took its peers along."""

from __future__ import annotations

import pytest

from perdure.recovery import actions, events
from perdure.recovery.directive import Want, directive
from perdure.recovery.job import Recovery
from perdure.recovery.reasons import Reason
from perdure.recovery.statuses import NodePhase, Status
from stories import LIMITS, Story, a_story


def test_user_code_that_fails_is_a_failure_with_its_code() -> None:
    story = a_story().running().report(NodePhase.ENDED, failed_stage="run", exit_code=3)
    assert story.task.status is Status.FAILED
    assert "code 3" in story.task.message
    assert not story.of(actions.Launch)


def test_setup_that_fails_has_its_own_status() -> None:
    story = a_story().tick().launched().report(NodePhase.BOOTED)
    story.report(NodePhase.ENDED, failed_stage="setup", exit_code=1)
    assert story.task.status is Status.FAILED_SETUP


def a_failed_rank(nodes: int = 2) -> Story:
    return a_story(nodes=nodes).running().report(NodePhase.ENDED, rank=1, failed_stage="run", exit_code=1)


CALLS = events.NodeReported(0, 1, 0, NodePhase.RUNNING)
BREAKS = events.NodeSilent(0, 1, 0)
ENDS = events.NodeReported(0, 1, 0, NodePhase.ENDED, exit_code=0)
LIVES = events.MachinesSeen(0, 1, {0: None, 1: None})
IS_TAKEN = events.MachinesSeen(0, 1, {0: Reason.PREEMPTED, 1: None})


@pytest.mark.parametrize(
    ("told", "status", "want"),
    [
        ([], Status.RUNNING, Want.RUN),
        ([CALLS], Status.RUNNING, Want.RUN),  # its cloud may know more
        ([LIVES], Status.RUNNING, Want.RUN),  # it may have died without a word
        ([LIVES, LIVES, LIVES], Status.RUNNING, Want.RUN),
        ([LIVES, CALLS], Status.RUNNING, Want.DRAIN),
        ([CALLS, LIVES], Status.RUNNING, Want.DRAIN),
        ([CALLS, BREAKS, LIVES], Status.RUNNING, Want.RUN),
        ([LIVES, BREAKS, CALLS], Status.RUNNING, Want.DRAIN),
        ([ENDS], Status.FAILED, Want.STOP),  # by itself: no machine is left to look for
        ([IS_TAKEN], Status.RECOVERING, None),
        ([CALLS, IS_TAKEN], Status.RECOVERING, None),
        ([LIVES, IS_TAKEN], Status.RECOVERING, None),
    ],
)
def test_with_several_nodes_nobody_is_blamed_before_the_peers_have_called_and_been_looked_up(
    told: list[events.Event], status: Status, want: Want | None
) -> None:
    story = a_failed_rank()
    assert story.of(actions.Check)
    assert directive(story.attempt).roll_call_at == story.now
    for event in told:
        story.tell(event)
    assert story.task.status is status
    assert want is None or directive(story.task.attempts[0]).want is want


def test_a_peer_that_never_calls_again_is_lost_and_nobody_is_blamed() -> None:
    story = a_failed_rank(nodes=3).tell(LIVES).report(NodePhase.RUNNING, rank=2)
    asked_s = 0.0
    while story.task.status is Status.RUNNING:
        assert story.wake_at is not None
        asked_s += story.wake_at - story.now
        story.tick(story.wake_at - story.now).tell(events.MachinesSeen(0, 1, {0: None, 1: None, 2: None}))
    assert story.task.status is Status.RECOVERING
    assert asked_s == LIMITS.silent_s


def test_a_task_on_one_node_is_blamed_at_once() -> None:
    story = a_story().running().report(NodePhase.ENDED, failed_stage="run", exit_code=1)
    assert not story.of(actions.Check)
    assert story.task.status is Status.FAILED


def test_restarts_on_errors_are_counted_and_end() -> None:
    story = a_story(recovery=Recovery(max_restarts_on_errors=1)).running()
    story.report(NodePhase.ENDED, failed_stage="run", exit_code=1)
    assert story.task.restarts_on_errors == 1
    assert story.task.recovery_count == 0
    story.launched().report(NodePhase.BOOTED).report(NodePhase.READY)
    story.tell(events.AttemptGone(0, 1))
    story.report(NodePhase.ENDED, failed_stage="run", exit_code=1)
    assert story.task.status is Status.FAILED


def test_recover_on_exit_codes_is_not_counted() -> None:
    story = a_story(recovery=Recovery(recover_on_exit_codes=frozenset({33}))).running()
    story.report(NodePhase.ENDED, failed_stage="run", exit_code=33)
    assert story.attempt.generation == 2
    assert story.task.restarts_on_errors == 0
