"""Node timeouts after times in which no report could be received: takeover, suspension, database outage."""

from __future__ import annotations

from typing import NoReturn

import pytest
from sqlalchemy.exc import OperationalError

from perdure.recovery import events
from perdure.recovery.statuses import NodePhase
from unit.controller.world import World


def test_node_timeout__restarts_after_a_takeover(world: World) -> None:
    job = world.submit()
    world.run(job)
    world.deliver(job, events.NodeDisconnected(0, 1, 0))  # as at the end of every controller
    world.clock.advance(10 * world.timeouts.node_timeout_s)
    world.restart()
    world.pass_time(world.timeouts.node_timeout_s - 5)
    world.report(job, NodePhase.RUNNING)
    assert world.job(job)["recovery_count"] == 0
    world.deliver(job, events.NodeDisconnected(0, 1, 0))
    world.pass_time(world.timeouts.node_timeout_s + 5)
    assert world.job(job)["recovery_count"] == 1, "a node that stays disconnected is lost"


def test_node_timeout__restarts_after_a_suspension(world: World) -> None:
    job = world.submit()
    world.run(job)
    world.deliver(job, events.NodeDisconnected(0, 1, 0))
    world.pass_time(world.timeouts.node_timeout_s - 5)
    world.clock.advance(10 * world.timeouts.node_timeout_s)  # the computer was suspended
    world.settle()
    world.report(job, NodePhase.RUNNING)
    world.pass_time(60)
    assert world.job(job)["recovery_count"] == 0
    assert world.view(job).tasks[0].attempts[0].nodes[0].connected


@pytest.mark.parametrize("noticed_by", ["an event", "the ticker"])
def test_node_timeout__restarts_after_a_database_outage(
    world: World, monkeypatch: pytest.MonkeyPatch, noticed_by: str
) -> None:
    job = world.submit()
    world.run(job)
    world.deliver(job, events.NodeDisconnected(0, 1, 0))
    world.pass_time(world.timeouts.node_timeout_s / 2)
    with monkeypatch.context() as patch:

        def refuse(*_: object) -> NoReturn:
            raise OperationalError("BEGIN", {}, Exception("the server closed the connection"))

        patch.setattr(world.inbox.outage._database, "begin", refuse)
        if noticed_by == "an event":
            world.deliver(job, events.NodeReported(0, 1, 0, NodePhase.RUNNING, mount_lost=False))
            world.deliver(job, events.NodeDisconnected(0, 1, 0))
        else:
            world.inbox.report_outage()
        world.pass_time(2 * world.timeouts.node_timeout_s)
    world.pass_time(world.timeouts.node_timeout_s - 10)
    assert world.job(job)["recovery_count"] == 0
    world.pass_time(20)
    assert world.job(job)["recovery_count"] == 1, "a node that stays disconnected is lost"


def test_node_timeout__does_not_run_for_connected_nodes(world: World) -> None:
    job = world.submit()
    world.run(job)
    world.clock.advance(10 * world.timeouts.node_timeout_s)
    world.pass_time(2 * world.timeouts.node_timeout_s)
    assert world.job(job)["recovery_count"] == 0
