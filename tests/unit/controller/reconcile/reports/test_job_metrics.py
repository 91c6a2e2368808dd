"""The metrics of jobs, from real decisions on a real store over the fake cloud."""

from __future__ import annotations

import pytest

from perdure.controller.reconcile.work_items import CheckpointReport, JobEvent
from perdure.recovery import events
from perdure.recovery.actions import TimelineEntry
from perdure.recovery.statuses import NodePhase
from unit.controller.world import World


def samples(world: World) -> dict[str, float]:
    """What a scrape returns: sample with labels → value."""
    text = world.inbox.reports.job_metrics.metrics.registry.render()
    return {
        key: float(value) for key, _, value in (line.rpartition(" ") for line in text.splitlines() if line[0] != "#")
    }


def total(world: World, name: str) -> float:
    """The sum of the samples of one name over all label sets."""
    return sum(value for key, value in samples(world).items() if key.partition("{")[0] == name)


def test_tasks__are_counted_by_status_until_they_are_finalized(world: World) -> None:
    first, _second = world.submit(), world.submit()
    assert samples(world)['perdure_tasks{status="STARTING"}'] == 2
    world.run(first)
    now = samples(world)
    assert (now['perdure_tasks{status="STARTING"}'], now['perdure_tasks{status="RUNNING"}']) == (1, 1)
    world.report(first, NodePhase.ENDED, exit_code=0)
    world.pass_time(10)
    now = samples(world)
    assert 'perdure_tasks{status="RUNNING"}' not in now
    assert now['perdure_tasks_ended_total{status="SUCCEEDED",reason="completed"}'] == 1
    assert total(world, "perdure_tasks") == 1
    assert total(world, "perdure_machines") == 1


def test_gauges__are_the_same_after_a_takeover(world: World) -> None:
    world.run(world.submit(nodes=2), nodes=2)
    world.submit()
    names = ("perdure_tasks", "perdure_attempts", "perdure_machines", "perdure_spend_dollars_per_hour")
    before = {key: value for key, value in samples(world).items() if key.partition("{")[0] in names}
    world.restart()
    after = {key: value for key, value in samples(world).items() if key.partition("{")[0] in names}
    assert after == before
    assert len(before) >= 4


def test_gauges__are_empty_when_nothing_is_left(world: World) -> None:
    for _ in range(3):
        job = world.submit()
        world.run(job)
        world.report(job, NodePhase.ENDED, exit_code=0)
    world.pass_time(30)
    for name in ("perdure_tasks", "perdure_attempts", "perdure_machines", "perdure_spend_dollars_per_hour"):
        assert total(world, name) == 0, name


def test_cost__equals_the_bill_of_the_cloud(world: World) -> None:
    job = world.submit()
    world.run(job)
    world.pass_time(600)
    world.report(job, NodePhase.ENDED, exit_code=0)
    world.pass_time(30)
    assert total(world, "perdure_cost_dollars_total") == pytest.approx(sum(c.usd for c in world.cloud.bill()), rel=0.02)
    assert total(world, "perdure_cost_on_demand_dollars_total") > total(world, "perdure_cost_dollars_total")


def test_preemption__is_counted_with_its_offer_and_its_recovery(world: World) -> None:
    job = world.submit()
    world.run(job)
    world.pass_time(100)
    world.deliver(job, events.PreemptionNotice(0, 1, 0, world.clock.now() + 30))
    world.report(job, NodePhase.ENDED, interrupted=True)
    world.pass_time(20)
    world.run(job, generation=2)
    now = samples(world)
    (preempted,) = [key for key in now if key.startswith("perdure_preemptions_total")]
    assert 'cloud="fake"' in preempted
    assert 'noticed="true"' in preempted
    assert total(world, "perdure_notices_total") == 1
    assert now['perdure_recoveries_total{cause="preemption_notice"}'] == 1
    assert now["perdure_notice_to_replacement_seconds_count"] == 1
    assert now["perdure_notice_to_replacement_seconds_sum"] == pytest.approx(20, abs=2)
    assert now["perdure_recovery_seconds_count"] == 1
    # The workload reports no checkpoints, so all that it did is taken as lost.
    assert now['perdure_work_lost_seconds_total{cause="preemption_notice"}'] == pytest.approx(100, abs=2)
    assert now["perdure_work_done_seconds_total"] == pytest.approx(100, abs=2)


def test_refusal__is_counted_by_offer(world: World) -> None:
    world.cloud.faults.launch_errors = dict.fromkeys((offer.zone for offer in world.cloud.offers()), "NoCapacity")
    world.submit()
    world.pass_time(3)
    now = samples(world)
    refused = [key for key in now if key.startswith("perdure_refusals_total")]
    assert refused
    assert all('kind="avoid-zone"' in key and 'zone="fake-' in key for key in refused), refused
    assert now["perdure_oldest_waiting_seconds"] >= 2


def test_checkpoints__give_lag_and_age(world: World) -> None:
    job = world.submit()
    world.run(job)
    world.pass_time(50)
    assert samples(world)["perdure_oldest_checkpoint_age_seconds"] == pytest.approx(50, abs=2)
    note = TimelineEntry("checkpoint.durable", 0, 1, 0, data={"step": 5, "seq": 1})
    durable = events.CheckpointDurable(0, 1, world.clock.now() - 4, step=5)
    world.post(JobEvent(job, durable, checkpoint=CheckpointReport((job, 0, 1), 0, 1, note)))
    world.pass_time(10)
    now = samples(world)
    assert now['perdure_checkpoints_total{state="durable"}'] == 1
    assert now["perdure_checkpoint_durable_lag_seconds_sum"] == pytest.approx(4, abs=0.1)
    assert now["perdure_oldest_checkpoint_age_seconds"] == pytest.approx(14, abs=2)


def test_no_label__names_a_job(world: World) -> None:
    for _ in range(30):
        world.run(world.submit())
    few = len(samples(world))
    world.run(world.submit())
    assert len(samples(world)) == few


def test_bug_in_the_observer__does_not_fail_the_decision(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(world.inbox.reports.job_metrics.metrics.launches, "inc", fail)
    job = world.submit()
    world.run(job)
    assert world.job(job)["status"] == "RUNNING"


def test_jobs_alike__share_what_they_add_to_the_gauges(world: World) -> None:
    for job in (world.submit(), world.submit()):
        world.run(job)
    first, second = world.inbox.reports.job_metrics._counted.values()
    assert first is second
    assert total(world, "perdure_tasks") == 2
