"""Losing jobs, and acting only with a lease."""

from __future__ import annotations

from concurrent.futures import Future

from perdure.controller.store.records import agent_connections, job_claims
from perdure.recovery.heartbeat_interval import RECONNECT_S
from support.helpers.leases import insert_lease
from unit.controller.world import World


def test_recheck__drops_jobs_that_another_daemon_claimed(world: World) -> None:
    lost, kept = world.submit(), world.submit()
    with world.database.begin() as conn:
        job_claims.claim(conn, "other", world.clock.now(), limit=1, take_all=True)
    done: Future[None] = world.inbox.recheck()
    world.settle()
    assert done.done()
    assert world.inbox.view(lost) is None
    assert world.inbox.view(kept) is not None


def test_lease__without_it_no_machine_is_launched(world: World) -> None:
    world.has_lease = False
    job = world.submit()
    world.pass_time(3)
    assert world.cloud.calls["launch"] == 0
    world.has_lease = True
    world.pass_time(3)
    assert world.cloud.calls["launch"] == 1
    world.run(job)
    assert world.job(job)["status"] == "RUNNING"


def test_takeover__keeps_nodes_that_another_daemon_is_connected_to(world: World) -> None:
    connected, disconnected = world.submit(), world.submit()
    for job in (connected, disconnected):
        world.run(job)
    insert_lease(world.database, world.clock, "third", 3600)
    with world.database.begin() as conn:
        agent_connections.record(
            conn, ((connected, 0, 1), 0), controller="third", session_id="t", now=world.clock.now()
        )
    world.restart()
    assert world.view(disconnected).tasks[0].attempts[0].nodes[0].connected, "the node may still connect"
    world.pass_time(RECONNECT_S + 1)
    assert world.view(connected).tasks[0].attempts[0].nodes[0].connected
    assert not world.view(disconnected).tasks[0].attempts[0].nodes[0].connected
