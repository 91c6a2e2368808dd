"""What counts against the quotas, on both databases."""

from __future__ import annotations

from perdure.controller.store.queries.usage import read_usage
from perdure.recovery import events
from perdure.recovery.reasons import Reason
from perdure.recovery.statuses import NodePhase
from support.helpers.held_calls import HeldCalls
from unit.controller.world import World


def test_read_usage__counts_machines_users_and_requested_launches(world: World) -> None:
    booting, running, ended = world.submit(nodes=2), world.submit(), world.submit()
    world.run(running)
    world.run(ended)
    world.report(ended, NodePhase.ENDED, exit_code=0)
    world.pass_time(60)
    world.dispatcher.calls = HeldCalls(world)
    waiting = world.submit()
    with world.database.connect() as conn:
        usage = read_usage(conn, [(waiting, 0, 1), (booting, 0, 1)])
    assert usage.machines == {(booting, 0, 1): ("fake", 2), (running, 0, 1): ("fake", 1)}
    assert usage.users == {booting: "", running: ""}
    assert usage.requested == {(waiting, 0, 1)}


def test_read_usage__counts_a_job_that_recovers_for_its_user(world: World) -> None:
    job = world.submit()
    world.run(job)
    held_calls = world.dispatcher.calls = HeldCalls(world)
    world.cloud.preempt(world.living()[0])
    world.deliver(job, events.MachinesDescribed(0, 1, {0: Reason.PREEMPTED}))
    held_calls.run_for(1)
    assert world.job(job)["status"] == "RECOVERING"
    with world.database.connect() as conn:
        assert read_usage(conn, []).users == {job: ""}
