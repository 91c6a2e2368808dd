"""Events are queued in the transaction that records them, from real decisions."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import update

from perdure.controller.maintenance.notify.messages import single
from perdure.controller.runtime.config.notify_config import CALLBACK, ChannelConfig, NotifyConfig, NotifyRule
from perdure.controller.store.records import notifications
from perdure.controller.store.records.jobs import Job
from perdure.recovery import events
from perdure.recovery.job import Recovery
from perdure.recovery.statuses import NodePhase
from unit.controller.world import World

CHANNELS = {name: ChannelConfig(name, "slack", "https://example.com") for name in ("ops", "mine")}
EVERYTHING = NotifyConfig(CHANNELS, (NotifyRule(("*",), ("ops",)),))


def queued(world: World, channel: str | None = None) -> list[Any]:
    with world.database.connect() as conn:
        return notifications.latest(conn, 1000, channel=channel)[::-1]


def kinds(world: World, channel: str | None = None) -> list[str]:
    return [row.kind for row in queued(world, channel)]


def notified(world: World, config: NotifyConfig) -> World:
    """The world with this configuration."""
    return World(world.url, notify=config)


def test_life_of_a_job__is_told_in_order(world: World) -> None:
    world = notified(world, EVERYTHING)
    job = world.submit()
    world.run(job)
    world.deliver(job, events.PreemptionNotice(0, 1, 0, world.clock.now() + 30))
    world.report(job, NodePhase.ENDED, interrupted=True)
    world.pass_time(5)
    world.run(job, generation=2)
    world.report(job, NodePhase.ENDED, generation=2, exit_code=0)
    world.pass_time(10)
    assert kinds(world) == [
        "job.starting",
        "job.started",
        "job.notice",
        "job.preempted",
        "job.recovered",
        "task.ended",
        "job.succeeded",
    ]
    bodies = [row.body for row in queued(world)]
    assert len({body["id"] for body in bodies}) == len(bodies)
    preempted = bodies[3]["data"]
    assert preempted["reason"] == "PREEMPTION_NOTICE"
    assert preempted["job_name"] == "job"
    assert preempted["place"].startswith("fake/")


def test_pipeline__ends_once_as_a_job(world: World) -> None:
    world = notified(world, EVERYTHING)
    job = world.submit(tasks=2)
    world.run(job)
    world.report(job, NodePhase.ENDED, exit_code=1)
    world.pass_time(10)
    assert kinds(world)[2:] == ["task.ended", "task.ended", "job.failed"]


def test_rules__choose_by_event_user_and_name(world: World) -> None:
    rules = (
        NotifyRule(("job.succeeded",), ("ops",), name="jo*"),
        NotifyRule(("job.*",), ("mine",), user="somebody"),
        NotifyRule(("job.succeeded", "job.failed"), ("ops", "mine")),
    )
    world = notified(world, NotifyConfig(CHANNELS, rules))
    job = world.submit()
    world.run(job)
    world.report(job, NodePhase.ENDED, exit_code=0)
    world.pass_time(10)
    assert [(row.kind, row.channel) for row in queued(world)] == [("job.succeeded", "ops"), ("job.succeeded", "mine")]


def test_task__names_its_own_channels_and_events(world: World) -> None:
    world = notified(world, NotifyConfig(CHANNELS))
    default = world.submit(spec={"notify": {"to": ["mine"]}})
    chosen = world.submit(spec={"notify": {"to": ["ops", "unknown"], "when": ["job.start*"]}})
    for job in (default, chosen):
        world.run(job)
        world.report(job, NodePhase.ENDED, exit_code=0)
    world.pass_time(10)
    assert [(row.job_id, row.kind, row.channel) for row in queued(world)] == [
        (chosen, "job.starting", "ops"),
        (default, "job.succeeded", "mine"),
        (chosen, "job.started", "ops"),
    ]


def test_cluster__has_the_events_of_its_jobs_and_none_of_its_machines(world: World) -> None:
    """The job that holds the machines is cancelled when the cluster stops, and launched anew when it starts."""
    world = notified(world, EVERYTHING)
    host, job = world.submit(), world.submit()
    with world.database.begin() as conn:
        conn.execute(update(Job).where(Job.c.id == host).values(cluster_id=1))
        conn.execute(update(Job).where(Job.c.id == job).values(cluster_id=1, cluster_job=1))
    for cancelled in (host, job):
        world.run(cancelled)
        world.deliver(cancelled, events.CancelRequested(0.0))
    world.pass_time(10)
    # The launches of both were recorded before they belonged to the cluster.
    events_after = [(row.job_id, row.kind) for row in queued(world) if row.kind != "job.starting"]
    assert events_after == [(job, kind) for kind in ("job.started", "job.cancelling", "task.ended", "job.cancelled")]


def test_lost_cluster__is_an_event_of_its_own(world: World) -> None:
    world = notified(world, EVERYTHING)
    host = world.submit(recovery=Recovery(recovers=False))
    with world.database.begin() as conn:
        conn.execute(update(Job).where(Job.c.id == host).values(cluster_id=1))
    world.run(host)
    world.deliver(host, events.PreemptionNotice(0, 1, 0, world.clock.now() + 30))
    world.report(host, NodePhase.ENDED, interrupted=True)
    world.pass_time(10)
    sent = [row for row in queued(world) if row.kind != "job.starting"]
    assert [row.kind for row in sent] == ["cluster.preempted"]
    name = sent[0].body["data"]["job_name"]
    message = single(sent[0])
    assert message.title == f"Cluster {name} has lost its machines"
    assert message.text.endswith(f"perdure queue {name}")


def test_callback__gets_the_events_that_skypilot_has(world: World) -> None:
    world = notified(world, NotifyConfig(runs_callbacks=True))
    plain, with_callback = world.submit(), world.submit(spec={"event_callback": "echo"})
    for job in (plain, with_callback):
        world.run(job)
        world.deliver(job, events.CancelRequested(0.0))
    world.pass_time(10)
    assert {row.job_id for row in queued(world)} == {with_callback}
    assert kinds(world, CALLBACK) == ["job.starting", "job.started", "job.cancelling", "task.ended"]


def test_callback__is_not_queued_unless_it_may_run(world: World) -> None:
    world = notified(world, NotifyConfig(CHANNELS))
    world.run(world.submit(spec={"event_callback": "echo"}))
    assert queued(world) == []


def test_decision_that_is_not_recorded__queues_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows belong to the transaction."""
    world = notified(world, EVERYTHING)
    job = world.submit()
    before = kinds(world)

    def fail(*_: object) -> None:
        raise RuntimeError("the transaction fails at its end")

    with monkeypatch.context() as patch:
        patch.setattr("perdure.controller.reconcile.recorder.pg_notify.notify_all", fail)
        world.run(job)
    assert kinds(world) == before
    world.pass_time(120)
    assert "job.started" in kinds(world)
    assert len(kinds(world)) == len(set(kinds(world)))


def test_bug_in_the_outbox__costs_no_decision(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world = notified(world, EVERYTHING)

    def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr("perdure.controller.reconcile.reports.notification_outbox.NotificationOutbox._body", fail)
    job = world.submit()
    world.run(job)
    assert world.job(job)["status"] == "RUNNING"
