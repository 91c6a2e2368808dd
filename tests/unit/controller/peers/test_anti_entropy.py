"""Resynchronizing nodes whose jobs another daemon owns."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from perdure.controller.nodes.connection import Connection
from perdure.controller.nodes.connection_records import ConnectionRecords
from perdure.controller.nodes.frames import NodeReport
from perdure.controller.nodes.session import NodeSessions
from perdure.controller.peers.anti_entropy import Resync
from perdure.controller.reconcile.work_items import JobEvent
from perdure.controller.store.logs.file_logs import FileLogStore
from perdure.controller.store.records import peer_messages
from perdure.recovery import events
from perdure.recovery.reasons import Reason
from perdure.recovery.statuses import NodePhase
from unit.controller.world import Controller, World

REPORT = NodeReport(phase=NodePhase.RUNNING)


class OtherDaemon:
    """A daemon that holds the connection of rank 0. The job's owner has received its report before.

    `controller`: its parts; by default those of a daemon without jobs.
    """

    def __init__(
        self, world: World, job: int, home: Path, *, controller: Controller | None = None, generation: int = 1
    ) -> None:
        self.place = ((job, 0, generation), 0)
        self.controller = controller or world.controller("other")
        self.forwarded: list[JobEvent] = []
        world.forward = self.forwarded.append
        self.presence = ConnectionRecords(world.database, world.clock, "other")
        self.sessions = NodeSessions(
            self.controller.inbox,
            FileLogStore(home),
            self.presence,
            clock=world.clock,
            heartbeat_interval_s=5.0,
            node_timeout_s=60.0,
            monotonic=lambda: 1000.0,
        )
        self.resync = Resync(world.database, self.controller.inbox, self.sessions, self.presence, lambda: 1000.0)

    def connection(self) -> Connection:
        """A new connection of the node."""
        made = Connection(self.place, report=REPORT)
        made.last_directive = self.presence.mark_connected(self.place, made.session_id).directive
        self.sessions.register(made)
        return made

    def run_resync(self) -> list[JobEvent]:
        """Run a scan. Returns the events that were forwarded to the owner of the job."""

        async def go() -> None:
            self.sessions._loop = asyncio.get_running_loop()
            await asyncio.to_thread(self.resync.resync_nodes)
            await asyncio.sleep(0)

        self.forwarded.clear()
        asyncio.run(go())
        self.controller.settle()
        return list(self.forwarded)


@pytest.fixture
def job(world: World) -> int:
    job = world.submit(nodes=2)
    world.run(job, nodes=2)
    return job


def test_resync_nodes__reports_a_node_that_its_owner_counts_as_disconnected(
    world: World, job: int, tmp_path: Path
) -> None:
    other = OtherDaemon(world, job, tmp_path)
    connection = other.connection()
    assert other.run_resync() == []
    world.deliver(job, events.NodeDisconnected(0, 1, 0))
    (job_event,) = other.run_resync()
    assert job_event.event == events.NodeReported(0, 1, 0, NodePhase.RUNNING)
    assert not connection.closed


def test_resync_nodes__does_not_resend_an_unread_report(world: World, job: int, tmp_path: Path) -> None:
    other = OtherDaemon(world, job, tmp_path)
    other.connection()
    world.deliver(job, events.NodeDisconnected(0, 1, 0))
    with world.database.begin() as conn:
        peer_messages.enqueue(conn, job, {}, world.clock.now())
    assert other.run_resync() == []
    with world.database.begin() as conn:
        conn.execute(peer_messages.PeerMessages.delete())
    assert len(other.run_resync()) == 1


def test_resync_nodes__limited_to_some_jobs(world: World, job: int, tmp_path: Path) -> None:
    other = OtherDaemon(world, job, tmp_path)
    other.connection()
    world.deliver(job, events.NodeDisconnected(0, 1, 0))
    other.resync.resync_nodes({job + 1})
    other.resync.resync_nodes(())
    assert not other.forwarded
    assert other.presence.disconnected_nodes({job + 1}) == []


def test_resync_nodes__reconnects_a_node_after_a_roll_call(world: World, job: int, tmp_path: Path) -> None:
    other = OtherDaemon(world, job, tmp_path)
    before = other.connection()
    world.report(job, NodePhase.ENDED, rank=1, exit_code=1, failed_stage="run")
    assert not world.view(job).tasks[0].attempts[0].nodes[0].connected
    assert other.run_resync() == []
    assert before.closed
    after = other.connection()
    (job_event,) = other.run_resync()
    assert job_event.event == events.NodeReported(0, 1, 0, NodePhase.RUNNING)
    assert not after.closed
    world.deliver(job, job_event.event)
    assert world.job(job)["status"] == "RUNNING"
    world.report(job, NodePhase.ENDED, rank=0, interrupted=True)
    assert world.job(job)["status"] == "FAILED"


def test_resync_nodes__a_daemon_that_lost_its_jobs_without_noticing_stops_no_newer_attempt(
    world: World, job: int, tmp_path: Path
) -> None:
    deposed = world.current
    world.restart()
    world.deliver(job, events.MachinesDescribed(0, 1, {0: Reason.PREEMPTED, 1: Reason.PREEMPTED}))
    world.pass_time(10)
    world.run(job, generation=2, nodes=2)
    (before,) = deposed.inbox.view(job).tasks[0].attempts
    assert before.generation == 1
    other = OtherDaemon(world, job, tmp_path, controller=deposed, generation=2)
    connection = other.connection()
    other.run_resync()
    assert connection.last_directive.target == "run"
