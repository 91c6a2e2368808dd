"""Reports of use: kept while the node is connected, and evidence of progress for jobs that ask for it."""

from __future__ import annotations

import math
from dataclasses import replace

from perdure.controller.nodes.frames import GpuUsage, UsageFrame
from perdure.controller.nodes.node_usage import NodeUsage, machine_values
from perdure.controller.reconcile.work_items import JobEvent, complete
from perdure.recovery.job import Recovery
from unit.controller.world import World

IDLE, BUSY = 0.0, 0.9


def frame(*utilization: float) -> UsageFrame:
    return UsageFrame(
        type="usage",
        cpus=2.0,
        cpu_used=1.0,
        memory_used=1.0,
        memory_total=2.0,
        disk_used=1.0,
        disk_total=2.0,
        gpus=[GpuUsage(utilization=share, memory_used=1.0, memory_total=2.0) for share in utilization],
    )


def running(world: World, recovery: Recovery) -> int:
    job = world.submit(nodes=2, recovery=recovery)
    world.run(job, nodes=2)
    return job


def test_newest_report__is_kept_while_the_node_is_connected(world: World) -> None:
    usage = NodeUsage(world.inbox, world.clock.now)
    job = running(world, Recovery())
    for rank, share in ((1, BUSY), (0, IDLE), (1, IDLE)):
        usage.on_usage(((job, 0, 1), rank), frame(share))
    usage.on_usage(((job + 1, 0, 1), 0), frame())
    assert [(place[1], report.frame.gpus[0].utilization) for place, report in usage.newest(job)] == [(0, 0.0), (1, 0.0)]
    usage.forget(((job, 0, 1), 1))
    assert [place[1] for place, _ in usage.newest(job)] == [0]
    assert usage.total == 4


def test_idle_gpus__make_a_job_stuck(world: World) -> None:
    usage = NodeUsage(world.inbox, world.clock.now)
    job = running(world, Recovery(stuck_after_s=600.0))
    for minute in range(25):
        usage.on_usage(((job, 0, 1), 0), frame(BUSY if minute < 10 else IDLE, IDLE))
        world.pass_time(60.0, step_s=4.0)
        assert ("task.stuck" in world.kinds(job)) == (minute >= 20), minute
    assert "its GPUs are idle" in world.job(job)["message"]


def test_busy_gpus__are_recorded_seldom(world: World) -> None:
    usage = NodeUsage(world.inbox, world.clock.now)
    job = running(world, Recovery(stuck_after_s=600.0))
    decisions = world.inbox.reports.job_metrics.metrics.decisions
    before = sum(decisions._values.values())
    for _ in range(60):
        usage.on_usage(((job, 0, 1), 0), frame(BUSY))
        world.pass_time(10.0, step_s=5.0)
    recorded = sum(decisions._values.values()) - before
    assert 4 <= recorded <= 6, "a fifth of ten minutes, in ten minutes"


def test_idle_gpus__are_recorded_again_since_silence_proves_nothing(world: World) -> None:
    usage = NodeUsage(world.inbox, world.clock.now)
    job = running(world, Recovery(stuck_after_s=600.0))
    seen = set()
    for _ in range(30):
        usage.on_usage(((job, 0, 1), 0), frame(IDLE))
        world.pass_time(10.0, step_s=5.0)
        seen.add(world.inbox.owned[job].view.tasks[0].gpus_at)
    assert 3 <= len(seen) <= 4, "a fifth of ten minutes, in five minutes"


def test_job_of_another_controller__has_its_reports_forwarded(world: World) -> None:
    forwarded: list[JobEvent] = []

    def forward(event: JobEvent) -> None:
        forwarded.append(event)
        complete(event)

    world.forward = forward
    usage = NodeUsage(world.inbox, world.clock.now)
    for _ in range(30):
        usage.on_usage(((4711, 0, 1), 0), frame(IDLE))
        world.pass_time(10.0, step_s=10.0)
    assert 2 <= len(forwarded) <= 4, "every two minutes, in five minutes"


def test_gpus_that_flicker__are_recorded_one_report_at_a_time(world: World) -> None:
    """A node sends what it likes, and reconnects as often; what it says last counts once there is room."""
    usage = NodeUsage(world.inbox, world.clock.now)
    job = running(world, Recovery(stuck_after_s=600.0))
    for number in range(100):
        usage.on_usage(((job, 0, 1), 0), replace(frame(BUSY if number % 2 else IDLE), step=number))
        if number % 10 == 9:
            usage.forget(((job, 0, 1), 0))
    assert world.inbox.backlog() == 2, "one for its GPUs, one for its step"
    world.settle()
    world.clock.advance(30.0)
    usage.on_usage(((job, 0, 1), 0), frame(BUSY))
    usage.on_usage(((job, 0, 1), 0), frame(IDLE))
    usage.on_usage(((job, 0, 1), 0), frame(IDLE))
    world.settle()
    usage.on_usage(((job, 0, 1), 0), frame(IDLE))
    world.settle()
    assert world.inbox.owned[job].view.tasks[0].gpus_at == world.clock.now()


def test_job_without_limits__records_nothing(world: World) -> None:
    usage = NodeUsage(world.inbox, world.clock.now)
    job = running(world, Recovery())
    usage.on_usage(((job, 0, 1), 0), frame(BUSY))
    assert world.inbox.backlog() == 0


def test_busy_jobs__use_their_share_of_the_processors_or_of_a_gpu(world: World) -> None:
    usage = NodeUsage(world.inbox, world.clock.now)
    place = ((1, 0, 1), 0)
    usage.on_usage(place, frame(IDLE, 0.2))
    assert usage.busy_jobs({1: 0.5}) == {1}, "one of its two processors"
    assert usage.busy_jobs({1: 0.51}) == set()
    assert usage.busy_jobs({2: 0.1}) == set()
    usage.on_usage(place, frame(IDLE, BUSY))
    assert usage.busy_jobs({1: 0.6}) == {1}, "its second GPU"


def test_busy_jobs__have_nodes_whose_report_is_missing_or_late(world: World) -> None:
    usage, floors = NodeUsage(world.inbox, world.clock.now), {1: 0.9}
    quiet, silent = ((1, 0, 1), 0), ((1, 0, 1), 1)
    usage.on_usage(quiet, frame(IDLE))
    assert usage.busy_jobs(floors) == set()
    usage.expect(silent)
    assert usage.busy_jobs(floors) == {1}
    assert [place for place, _ in usage.newest(1)] == [quiet]
    usage.forget(silent)
    assert usage.busy_jobs(floors) == set()
    world.clock.advance(200.0)
    assert usage.busy_jobs(floors) == {1}


def test_machine_values__are_finite_whatever_a_node_reports() -> None:
    lie = replace(frame(0.5), cpus=5e-324, memory_used=1e18, memory_total=5e-324, disk_used=1e18, disk_total=0.0)
    values = list(machine_values(lie))
    assert not any(map(math.isinf, values))
    assert values[1] == 1.0
    assert math.isnan(values[2])


def test_steps_that_stand_still__make_a_job_stuck_and_not_before_its_time(world: World) -> None:
    usage = NodeUsage(world.inbox, world.clock.now)
    job = running(world, Recovery(stuck_after_s=600.0))
    for minute in range(25):
        step = minute if minute <= 10 else None  # an agent sends a report once
        usage.on_usage(((job, 0, 1), 0), replace(frame(), step=step))
        world.pass_time(60.0, step_s=4.0)
        if minute < 20:
            assert "task.stuck" not in world.kinds(job), minute
    assert "task.stuck" in world.kinds(job)
    assert "no step was reported after step 10" in world.job(job)["message"]


def test_steps__are_recorded_seldom(world: World) -> None:
    usage = NodeUsage(world.inbox, world.clock.now)
    job = running(world, Recovery(stuck_after_s=600.0))
    decisions = world.inbox.reports.job_metrics.metrics.decisions
    before = sum(decisions._values.values())
    for step in range(60):
        usage.on_usage(((job, 0, 1), 0), replace(frame(), step=step))
        world.pass_time(10.0, step_s=5.0)
    recorded = sum(decisions._values.values()) - before
    assert 4 <= recorded <= 6, "a fifth of ten minutes, in ten minutes"
