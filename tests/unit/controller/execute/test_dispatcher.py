"""The dispatcher in a controller whose calls are blocked: withdrawn, repeated and ordered launches."""

from __future__ import annotations

from typing import Any

from perdure.controller.clouds.base.protocol import VISIBLE_WITHIN_S
from perdure.controller.clouds.fake import Faults
from perdure.controller.store.records import job_claims
from perdure.recovery import events
from support.helpers.held_calls import HeldCalls
from unit.controller.world import World


def queued_launches(held_calls: HeldCalls) -> list[Any]:
    return [call.launch for future, call in held_calls.calls if not future.cancelled()]


def test_cancel__withdraws_a_launch_that_has_not_begun(world: World, held_calls: HeldCalls) -> None:
    job = world.submit()
    assert [launch.key for launch in queued_launches(held_calls)] == [(job, 0, 1)]
    world.deliver(job, events.CancelRequested(0))
    assert world.job(job)["status"] == "CANCELLED"
    assert "attempt.withdrawn" in world.kinds(job)
    held_calls.run_for(60)
    assert world.cloud.calls["launch"] == 0
    assert world.view(job).is_finalized


def test_cancel__terminates_the_machine_of_a_launch_that_has_begun(world: World, held_calls: HeldCalls) -> None:
    job = world.submit()
    held_calls.calls[0][0].set_running_or_notify_cancel()
    world.deliver(job, events.CancelRequested(0))
    assert "attempt.withdrawn" not in world.kinds(job)
    world.current.run(held_calls.calls.pop(0)[1])
    held_calls.run_for(60)
    assert (world.cloud.calls["launch"], world.living()) == (1, [])
    assert world.view(job).is_finalized


def test_termination__waits_for_machine_of_a_late_launch_to_be_listed(world: World, held_calls: HeldCalls) -> None:
    """The cancel was long ago when the cloud launched the machine and its response was lost."""
    job = world.submit()
    held_calls.calls[0][0].set_running_or_notify_cancel()
    world.deliver(job, events.CancelRequested(0))
    lost_requests = [0] * 7
    world.cloud.faults = Faults(broken_launches=[*lost_requests, 1], listing_delay_s=VISIBLE_WITHIN_S / 2)
    world.current.run(held_calls.calls.pop(0)[1])
    held_calls.run_for(150)
    assert world.cloud.calls["launch"] == len(lost_requests) + 1
    assert world.living() == []
    assert world.view(job).is_finalized


def test_takeover__terminates_the_machine_of_a_launch_without_a_result(world: World, held_calls: HeldCalls) -> None:
    job = world.submit()
    world.current.run(held_calls.calls.pop(0)[1])  # the machine exists, and the result is lost
    with world.database.begin() as conn:
        claimed = job_claims.claim(conn, "two", world.clock.now(), limit=10, take_all=True)
    world.current = world.controller("two")
    world.dispatcher.calls = held_calls
    world.inbox.adopt(claimed)
    world.settle()
    world.deliver(job, events.CancelRequested(0))
    held_calls.run_for(60)
    assert world.living() == []
    assert world.view(job).is_finalized


def test_launch__is_queued_by_user_priority_and_whether_the_job_has_run(world: World, held_calls: HeldCalls) -> None:
    job = world.submit(nodes=2)
    (first,) = queued_launches(held_calls)
    assert (first.user, first.priority, first.machines, first.has_run) == ("", 0, 2, False)
    held_calls.run_for(1)
    world.run(job, nodes=2)
    world.cloud.preempt(world.living()[0])
    world.deliver(job, events.NodeDisconnected(0, 1, 0))
    held_calls.run_for(1)
    launches = [launch for launch in queued_launches(held_calls) if launch is not None]
    assert [(launch.key, launch.has_run) for launch in launches] == [((job, 0, 2), True)]


def test_launch__wider_than_max_machines_fails_the_job(world: World) -> None:
    world.max_machines["fake"] = 2
    narrow, wide = world.submit(nodes=2), world.submit(nodes=3)
    assert world.job(narrow)["status"] == "STARTING"
    assert world.job(wide)["status"].startswith("FAILED")
    assert "3 machines at a time are more than fake.max_machines (2)" in world.job(wide)["message"]
    assert world.cloud.calls["launch"] == 1


def test_running_job__leaves_nothing_here(world: World) -> None:
    before = dict(vars(world.dispatcher))
    world.run(world.submit())
    kept = {name: value for name, value in vars(world.dispatcher).items() if isinstance(before[name], dict) and value}
    assert not kept
