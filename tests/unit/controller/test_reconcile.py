"""Decide, record, act, observe: the daemon's core against the fake cloud."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import select
from sqlalchemy.exc import OperationalError

from perdure.controller.clouds.base import VISIBLE_WITHIN_S
from perdure.controller.store import jobs
from perdure.controller.store.intents import Intents
from perdure.controller.store.jobs import Job
from perdure.controller.turns import Checkpoint, Turn
from perdure.recovery import events
from perdure.recovery.actions import Note
from perdure.recovery.directive import Want
from perdure.recovery.reasons import Reason
from perdure.recovery.statuses import NodePhase


def test_a_job_runs_and_settles_with_nothing_left(world: Any) -> None:
    job = world.submit(nodes=2)
    assert len(world.living()) == 2
    world.run(job, nodes=2)
    assert world.job(job)["status"] == "RUNNING"
    for rank in range(2):
        world.report(job, NodePhase.ENDED, rank=rank, exit_code=0)
    world.pass_time(10)
    assert world.job(job)["status"] == "SUCCEEDED"
    assert world.living() == []
    with world.database.connect() as conn:
        assert conn.execute(select(Job.c.settled)).scalar() is True
        assert conn.execute(select(Intents).where(Intents.c.done_at.is_(None))).all() == []


def test_what_is_recorded_is_what_is_in_memory(world: Any) -> None:
    job = world.submit()
    world.run(job)
    assert world.view(job) == world.reconciler.view(job)
    world.tell(job, events.NoticeGiven(0, 1, 0, world.clock.now() + 30))
    assert world.view(job) == world.reconciler.view(job)


def test_recorded_cost_is_the_clouds_own_bill(world: Any) -> None:
    job = world.submit()
    world.run(job)
    world.pass_time(600)
    world.cloud.preempt(world.living()[0])
    world.tell(job, events.NodeSilent(0, 1, 0))
    world.run(job, generation=2)
    world.pass_time(300)
    world.report(job, NodePhase.ENDED, generation=2, exit_code=0)
    world.pass_time(30)
    assert world.job(job)["cost_usd"] == pytest.approx(sum(c.usd for c in world.cloud.bill()))
    assert world.job(job)["recovery_count"] == 1


def test_a_restarted_controller_goes_on_and_touches_nothing(world: Any) -> None:
    job = world.submit()
    world.run(job)
    machine, task_id = world.living(), world.job(job)["task_id"]
    world.restart()
    world.pass_time(30)
    assert world.living() == machine
    world.report(job, NodePhase.RUNNING)
    assert world.job(job)["status"] == "RUNNING"
    assert world.job(job)["recovery_count"] == 0
    assert world.job(job)["task_id"] == task_id
    world.report(job, NodePhase.ENDED, exit_code=0)
    world.pass_time(10)
    assert world.job(job)["status"] == "SUCCEEDED"
    assert world.living() == []


def test_a_launch_whose_answer_was_lost_is_not_bought_twice(world: Any) -> None:
    world.cloud.faults.broken_launches.append(1)
    job = world.submit()
    world.pass_time(5)
    assert len(world.living()) == 1
    world.run(job)
    assert world.job(job)["status"] == "RUNNING"


def test_a_controller_that_died_between_recording_and_acting_launches_once(world: Any) -> None:
    world.reconciler.dispatcher.perform = lambda *_: None  # the process dies here
    job = world.submit()
    assert world.living() == []
    world.restart()
    assert len(world.living()) == 1
    world.run(job)
    assert world.job(job)["generation"] == 1


def test_a_cancel_during_the_launch_ends_what_was_bought(world: Any) -> None:
    perform, held = world.reconciler.dispatcher._work, []
    world.reconciler.dispatcher._work = lambda *a: held.append(a)
    job = world.submit()
    world.tell(job, events.CancelRequested(0))
    assert world.job(job)["status"] == "CANCELLED"
    world.reconciler.dispatcher._work = perform
    for work in held:
        perform(*work)
    world.pass_time(10)
    assert world.cloud.calls["launch"] == 1
    assert world.living() == []


def test_a_late_writer_changes_nothing(world: Any) -> None:
    job = world.submit()
    old = world.reconciler
    world.restart()
    before = world.view(job)
    old.tell(job, events.CancelRequested(0))
    while old.turn(block=False):
        pass
    assert world.view(job) == before
    assert old.view(job) is None, "it must let go of a job that is not its own any more"


def test_a_database_that_is_away_pauses_the_job_and_loses_nothing(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    job = world.submit()
    record, failures = world.reconciler._recorder.record, [3]

    def refuse(*args: Any) -> Any:
        if failures[0]:
            failures[0] -= 1
            raise OperationalError("BEGIN", {}, Exception("database is locked"))
        return record(*args)

    monkeypatch.setattr(world.reconciler._recorder, "record", refuse)
    world.run(job)
    world.pass_time(10)
    assert world.job(job)["status"] == "RUNNING"


def test_throttling_delays_and_does_not_fail(world: Any) -> None:
    world.cloud.faults.throttle = 1
    job = world.submit()
    world.pass_time(60)
    assert len(world.living()) == 1
    assert world.job(job)["status"] == "STARTING"


def test_nodes_are_told_when_their_directive_changes(world: Any) -> None:
    job = world.submit()
    world.run(job)
    world.report(job, NodePhase.ENDED, exit_code=0)
    wants = [want for key, want in world.told if key == (job, 0, 1)]
    assert wants == [Want.WAIT, Want.SETUP, Want.RUN, Want.STOP]


def test_a_checkpoint_said_twice_is_in_the_timeline_once(world: Any) -> None:
    job = world.submit()
    said = Checkpoint((job, 0, 1), 0, 1, Note("checkpoint.committed", 0, 1, 0, data={"step": 10}))
    world.post(Turn(job, checkpoint=said))
    world.post(Turn(job, checkpoint=said))
    assert world.kinds(job).count("checkpoint.committed") == 1


def test_termination_is_repeated_until_the_cloud_says_gone(world: Any) -> None:
    world.cloud.faults.ending_s = 40
    job = world.submit()
    world.run(job)
    world.report(job, NodePhase.ENDED, exit_code=0)
    assert world.job(job)["status"] == "SUCCEEDED"
    assert world.job(job)["cleanup"] is not None
    world.pass_time(50)
    assert world.living() == []
    assert world.job(job)["cleanup"] is None


def test_time_in_which_no_controller_listened_is_no_silence_of_a_nodes(world: Any) -> None:
    job = world.submit()
    world.run(job)
    world.tell(job, events.NodeSilent(0, 1, 0))  # as at the end of every daemon
    world.clock.advance(10 * world.limits.silent_s)
    world.restart()
    world.pass_time(world.limits.silent_s - 5)
    world.report(job, NodePhase.RUNNING)
    assert world.job(job)["recovery_count"] == 0
    world.tell(job, events.NodeSilent(0, 1, 0))
    world.pass_time(world.limits.silent_s + 5)
    assert world.job(job)["recovery_count"] == 1, "who stays silent is still written off"


def test_a_controller_that_slept_gives_silent_nodes_their_time_again(world: Any) -> None:
    job = world.submit()
    world.run(job)
    world.tell(job, events.NodeSilent(0, 1, 0))
    world.pass_time(world.limits.silent_s - 5)
    world.clock.advance(10 * world.limits.silent_s)  # the computer's lid was closed
    world.settle()
    world.report(job, NodePhase.RUNNING)
    world.pass_time(60)
    assert world.job(job)["recovery_count"] == 0
    assert world.view(job).tasks[0].attempts[0].nodes[0].connected


@pytest.mark.parametrize("noticed_by", ["a turn", "the ticker"])
def test_time_without_a_database_is_no_silence_of_a_nodes(
    world: Any, monkeypatch: pytest.MonkeyPatch, noticed_by: str
) -> None:
    job = world.submit()
    world.run(job)
    world.tell(job, events.NodeSilent(0, 1, 0))
    world.pass_time(world.limits.silent_s / 2)
    with monkeypatch.context() as patch:

        def refuse(*_: Any) -> Any:
            raise OperationalError("BEGIN", {}, Exception("the server closed the connection"))

        patch.setattr(world.reconciler._outage._database, "begin", refuse)
        if noticed_by == "a turn":
            world.tell(job, events.NodeReported(0, 1, 0, NodePhase.RUNNING, mount_lost=False))
            world.tell(job, events.NodeSilent(0, 1, 0))
        else:
            world.reconciler.database_is_away()
        world.pass_time(2 * world.limits.silent_s)
    world.pass_time(world.limits.silent_s - 10)
    assert world.job(job)["recovery_count"] == 0
    world.pass_time(20)
    assert world.job(job)["recovery_count"] == 1, "who stays silent is still written off"


def test_a_controller_that_slept_takes_no_connected_node_for_silent(world: Any) -> None:
    job = world.submit()
    world.run(job)
    world.clock.advance(10 * world.limits.silent_s)
    world.pass_time(2 * world.limits.silent_s)
    assert world.job(job)["recovery_count"] == 0


class Flaky:
    """The database, whose next transactions fail at a moment: "begin", or "committed" when only the answer is lost."""

    def __init__(self, database: Any, *moments: str) -> None:
        self._database, self._moments = database, list(moments)
        self.connect = database.connect

    @contextmanager
    def begin(self) -> Iterator[Any]:
        moment = self._moments.pop(0) if self._moments else None
        if moment == "begin":
            raise OperationalError("BEGIN", None, Exception("no connection"))
        with self._database.begin() as conn:
            yield conn
        if moment == "committed":
            raise OperationalError("COMMIT", None, Exception("the connection broke"))


def test_nothing_overtakes_what_the_database_refused(world: Any) -> None:
    job = world.submit()
    world.run(job)
    world.reconciler._recorder.database = Flaky(world.database, "begin")
    world.tell(job, events.NodeSilent(0, 1, 0))
    world.report(job, NodePhase.RUNNING)  # the agent has called again
    world.pass_time(2)
    node = world.view(job).tasks[0].attempts[0].nodes[0]
    assert node.connected
    assert node.silent_since is None
    world.pass_time(world.limits.silent_s + 10)
    assert world.job(job)["recovery_count"] == 0


def test_a_commit_whose_answer_is_lost_is_taken_for_what_it_is(world: Any) -> None:
    job = world.submit()
    world.run(job)
    world.reconciler._recorder.database = Flaky(world.database, "committed")
    world.cloud.preempt(world.living()[0])
    world.tell(job, events.MachinesSeen(0, 1, {0: Reason.PREEMPTED}))
    world.pass_time(5)
    assert world.view(job) == world.reconciler.view(job)
    assert len(world.living()) == 1
    world.run(job, generation=2)
    assert world.job(job)["recovery_count"] == 1


def test_a_machine_that_its_cloud_does_not_show_yet_is_not_given_up(world: Any) -> None:
    world.cloud.faults.listing_delay_s = VISIBLE_WITHIN_S - 5
    job = world.submit()
    world.run(job)
    world.reconciler.look_later((job, 0, 1))
    world.settle()
    assert world.view(job).tasks[0].attempts[0].nodes[0].gone is None
    world.report(job, NodePhase.ENDED, exit_code=0)
    world.pass_time(5)
    assert world.kinds(job)[-1] != "attempt.gone"
    world.pass_time(VISIBLE_WITHIN_S)
    assert world.kinds(job)[-1] == "attempt.gone"
    assert world.job(job)["cost_usd"] == pytest.approx(sum(c.usd for c in world.cloud.bill()))


def test_a_no_after_a_lost_answer_does_not_hide_what_was_bought(world: Any) -> None:
    world.cloud.faults.broken_launches = [1]
    job = world.submit()
    world.cloud.faults.throttle = 1
    world.pass_time(1)
    assert len([c for c in world.cloud.bill() if c.owner.generation == 1]) == 1
    world.pass_time(60)
    assert [i.owner.generation for i in world.cloud.list_owned("test")] == [
        world.view(job).tasks[0].attempts[-1].generation
    ]
    assert world.job(job)["cost_usd"] == pytest.approx(sum(c.usd for c in world.cloud.bill()))


def test_a_try_whose_job_was_lost_is_not_repeated(world: Any) -> None:
    world.cloud.faults.broken_launches = [0] * 3
    world.submit()
    with world.database.begin() as conn:
        jobs.claim(conn, "another", world.clock.now(), limit=10, take_all=True)
    calls = world.cloud.calls["launch"]
    world.tell(1, events.CancelRequested(0.0))  # its guard fails: the job is another's
    world.pass_time(20)
    assert world.cloud.calls["launch"] == calls
