"""The reconcile loop against the fake cloud: decide, record, act, observe."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Any

import pytest
from sqlalchemy import select

from perdure.controller.clouds.base.protocol import VISIBLE_WITHIN_S
from perdure.controller.clouds.registry import BrokenCloud
from perdure.controller.execute.call_types import CloudCall
from perdure.controller.reconcile.recorder import MAX_SHOWN_CHECKPOINTS
from perdure.controller.reconcile.work_items import CheckpointReport, JobEvent
from perdure.controller.store.records import job_claims
from perdure.controller.store.records.intents import Intents
from perdure.controller.store.records.jobs import Job
from perdure.recovery import events
from perdure.recovery.actions import TimelineEntry
from perdure.recovery.directive import Target
from perdure.recovery.job import Recovery
from perdure.recovery.statuses import NodePhase
from unit.controller.world import World


def test_job__succeeds_and_leaves_no_machine_and_no_open_intent(world: World) -> None:
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
        assert conn.execute(select(Job.c.finalized)).scalar() is True
        assert conn.execute(select(Intents).where(Intents.c.done_at.is_(None))).all() == []


def test_recorded_job__equals_the_job_in_memory(world: World) -> None:
    job = world.submit()
    world.run(job)
    assert world.view(job) == world.inbox.view(job)
    world.deliver(job, events.PreemptionNotice(0, 1, 0, world.clock.now() + 30))
    assert world.view(job) == world.inbox.view(job)


def test_recorded_cost__equals_the_bill_of_the_cloud(world: World) -> None:
    job = world.submit()
    world.run(job)
    world.pass_time(600)
    world.cloud.preempt(world.living()[0])
    world.deliver(job, events.NodeDisconnected(0, 1, 0))
    world.run(job, generation=2)
    world.pass_time(300)
    world.report(job, NodePhase.ENDED, generation=2, exit_code=0)
    world.pass_time(30)
    assert world.job(job)["cost_usd"] == pytest.approx(sum(c.usd for c in world.cloud.bill()))
    assert world.job(job)["recovery_count"] == 1


def test_restart__leaves_a_running_job_alone(world: World) -> None:
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


def test_launch__lost_answer_launches_once(world: World) -> None:
    world.cloud.faults.broken_launches.append(1)
    job = world.submit()
    world.pass_time(5)
    assert len(world.living()) == 1
    world.run(job)
    assert world.job(job)["status"] == "RUNNING"


def test_restart__performs_an_intent_that_was_recorded_only(world: World) -> None:
    world.dispatcher.perform = lambda *_: None  # type: ignore[method-assign]  # the process dies here
    job = world.submit()
    assert world.living() == []
    world.restart()
    assert len(world.living()) == 1
    world.run(job)
    assert world.job(job)["generation"] == 1


def test_restart__with_a_broken_cloud_keeps_its_intents_open(world: World) -> None:
    world.cloud.faults.broken_launches.append(1)
    job = world.submit()
    cloud = world.cloud
    assert len(world.living()) == 1, "launched, but the response was lost"
    world.cloud = BrokenCloud("fake", "its SDK is missing")  # type: ignore[assignment]
    world.restart("two")
    world.pass_time(5)
    assert [e["message"] for e in world.timeline(job, "launch.retry")][1:] == ["Unavailable: its SDK is missing"]
    world.deliver(job, events.CancelRequested(0))
    world.pass_time(20 * VISIBLE_WITHIN_S)
    world.restart("three")
    world.pass_time(VISIBLE_WITHIN_S)
    assert {e["message"] for e in world.timeline(job, "terminate.retry")} == {"Unavailable: its SDK is missing"}
    assert not world.view(job).is_finalized
    world.cloud = cloud
    assert len(world.living()) == 1
    world.restart("four")
    world.pass_time(10)
    assert world.living() == []
    assert world.view(job).is_finalized


class BegunCalls:
    """Begins every call and makes none."""

    def __init__(self) -> None:
        self.calls: list[CloudCall] = []

    def submit(self, call: CloudCall, /) -> Future[Any]:
        self.calls.append(call)
        future: Future[Any] = Future()
        future.set_running_or_notify_cancel()
        return future


def test_cancel__during_a_launch_terminates_its_machine(world: World) -> None:
    calls, begun = world.dispatcher.calls, BegunCalls()
    world.dispatcher.calls = begun
    job = world.submit()
    world.deliver(job, events.CancelRequested(0))
    assert world.job(job)["status"] == "CANCELLED"
    world.dispatcher.calls = calls
    for call in begun.calls:
        calls.submit(call)
    world.pass_time(10)
    assert world.cloud.calls["launch"] == 1
    assert world.living() == []


def test_lease_lost__late_write_changes_nothing(world: World) -> None:
    job = world.submit()
    old = world.current
    world.restart()
    before = world.view(job)
    old.inbox.post(job, events.CancelRequested(0))
    old.settle()
    assert world.view(job) == before
    assert old.inbox.view(job) is None, "it drops a job that it does not own any more"


def test_throttled_launch__is_retried(world: World) -> None:
    world.cloud.faults.throttle = 1
    job = world.submit()
    world.pass_time(60)
    assert len(world.living()) == 1
    assert world.job(job)["status"] == "STARTING"


def test_changed_directives__are_pushed_to_the_nodes(world: World) -> None:
    job = world.submit()
    world.run(job)
    world.report(job, NodePhase.ENDED, exit_code=0)
    targets = [target for key, target in world.directives if key == (job, 0, 1)]
    assert targets == [Target.WAIT, Target.SETUP, Target.RUN, Target.STOP]


def test_checkpoint_report__enters_the_timeline_once(world: World) -> None:
    job = world.submit()
    report = CheckpointReport((job, 0, 1), 0, 1, TimelineEntry("checkpoint.committed", 0, 1, 0, data={"step": 10}))
    world.post(JobEvent(job, checkpoint=report))
    world.post(JobEvent(job, checkpoint=report))
    assert world.kinds(job).count("checkpoint.committed") == 1


def test_checkpoint_reports__of_one_node_are_bounded_in_the_timeline(world: World) -> None:
    job = world.submit()
    for seq in range(MAX_SHOWN_CHECKPOINTS - 1, MAX_SHOWN_CHECKPOINTS + 3):
        entry = TimelineEntry("checkpoint.committed", 0, 1, 0, data={"step": seq})
        world.post(JobEvent(job, checkpoint=CheckpointReport((job, 0, 1), 0, seq, entry)))
    shown = world.timeline(job, "checkpoint.committed")
    assert [entry["data"]["step"] for entry in shown] == [MAX_SHOWN_CHECKPOINTS - 1, MAX_SHOWN_CHECKPOINTS]
    assert "shows no more of them" in shown[-1]["message"]


def test_termination__is_retried_until_the_machine_is_gone(world: World) -> None:
    world.cloud.faults.ending_s = 40
    job = world.submit()
    world.run(job)
    world.report(job, NodePhase.ENDED, exit_code=0)
    assert world.job(job)["status"] == "SUCCEEDED"
    assert world.job(job)["cleanup"] is not None
    world.pass_time(50)
    assert world.living() == []
    assert world.job(job)["cleanup"] is None


def test_describe__unlisted_new_machine_is_not_lost(world: World) -> None:
    world.cloud.faults.listing_delay_s = VISIBLE_WITHIN_S - 5
    job = world.submit()
    world.run(job)
    world.inbox.request_describe((job, 0, 1))
    world.settle()
    assert world.view(job).tasks[0].attempts[0].nodes[0].gone_reason is None
    world.report(job, NodePhase.ENDED, exit_code=0)
    world.pass_time(5)
    assert world.kinds(job)[-1] != "attempt.gone"
    world.pass_time(VISIBLE_WITHIN_S)
    assert world.kinds(job)[-1] == "attempt.gone"
    assert world.job(job)["cost_usd"] == pytest.approx(sum(c.usd for c in world.cloud.bill()))


def test_launch__refusal_after_a_lost_answer_does_not_hide_the_machine(world: World) -> None:
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


def test_retry__stops_when_the_job_is_lost(world: World) -> None:
    world.cloud.faults.broken_launches = [0] * 3
    world.submit()
    with world.database.begin() as conn:
        job_claims.claim(conn, "another", world.clock.now(), limit=10, take_all=True)
    calls = world.cloud.calls["launch"]
    world.deliver(1, events.CancelRequested(0.0))  # its guard fails: another controller owns the job
    world.pass_time(20)
    assert world.cloud.calls["launch"] == calls


def test_durable_work__survives_a_restart(world: World) -> None:
    recovery = Recovery("DEADLINE", deadline_at=world.clock.now() + 9e4, work_s=3600.0)
    job = world.submit(recovery=recovery)
    world.run(job)
    world.pass_time(100)
    world.deliver(job, events.CheckpointDurable(0, 1, at=world.clock.now() - 20))
    saved = world.view(job).tasks[0].durable_s
    assert 70 < saved <= 81
    world.restart()
    assert world.inbox.view(job).tasks[0].durable_s == saved
    assert world.view(job).tasks[0].recovery == recovery
