"""A daemon's round over nodes whose jobs are another's: who has to answer a roll call is not vouched for."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from perdure.controller.attendance import Attendance
from perdure.controller.channel import Channel
from perdure.controller.connection import Connection
from perdure.controller.nodelogs import NodeLogs
from perdure.controller.reconcile import Reconciler
from perdure.controller.rounds import Rounds
from perdure.controller.store import letters
from perdure.controller.turns import Turn
from perdure.recovery import events
from perdure.recovery.statuses import NodePhase

SAID = {"phase": "running"}


class Beside:
    """A daemon without jobs that holds the connection of rank 0, whose report its owner once had."""

    def __init__(self, world: Any, job: int, home: Path) -> None:
        self.place = ((job, 0, 1), 0)
        self.reconciler: Reconciler = world.controller("other")
        self.told: list[Turn] = []
        self.reconciler.forward = self.told.append
        self.attendance = Attendance(world.database, world.clock, "other")
        self.channel = Channel(
            self.reconciler,
            NodeLogs(home),
            self.attendance,
            clock=world.clock,
            beat_s=5.0,
            silent_s=60.0,
            monotonic=lambda: 1000.0,
        )
        self.rounds = Rounds(world.database, self.reconciler, self.channel, self.attendance, lambda: 1000.0)

    def connection(self) -> Connection:
        """A new one of the node's, as it says hello."""
        made = Connection(self.place, report=SAID)
        made.told = self.attendance.arrive(self.place, made.token).wanted
        self.channel.hold(made)
        return made

    def goes_round(self) -> list[Turn]:
        """What it passes on to the owner of the job."""

        async def go() -> None:
            self.channel._loop = asyncio.get_running_loop()
            await asyncio.to_thread(self.rounds.nodes)
            await asyncio.sleep(0)

        self.told.clear()
        asyncio.run(go())
        while self.reconciler.turn(block=False):
            pass
        return list(self.told)


@pytest.fixture
def job(world: Any) -> int:
    job: int = world.submit(nodes=2)
    world.run(job, nodes=2)
    return job


def test_who_counts_as_silent_and_is_heard_here_is_vouched_for(world: Any, job: int, tmp_path: Path) -> None:
    beside = Beside(world, job, tmp_path)
    connection = beside.connection()
    assert beside.goes_round() == []
    world.tell(job, events.NodeSilent(0, 1, 0))
    (turn,) = beside.goes_round()
    assert turn.event == events.NodeReported(0, 1, 0, NodePhase.RUNNING)
    assert not connection.is_over


def test_what_is_on_its_way_is_not_said_again(world: Any, job: int, tmp_path: Path) -> None:
    beside = Beside(world, job, tmp_path)
    beside.connection()
    world.tell(job, events.NodeSilent(0, 1, 0))
    with world.database.begin() as conn:
        letters.put(conn, job, {}, world.clock.now())
    assert beside.goes_round() == []
    with world.database.begin() as conn:
        conn.execute(letters.Letters.delete())
    assert len(beside.goes_round()) == 1


def test_a_look_at_some_jobs_says_nothing_of_others(world: Any, job: int, tmp_path: Path) -> None:
    beside = Beside(world, job, tmp_path)
    beside.connection()
    world.tell(job, events.NodeSilent(0, 1, 0))
    beside.rounds.nodes({job + 1})
    beside.rounds.nodes(())
    assert not beside.told
    assert beside.attendance.silent({job + 1}) == []


def test_who_has_to_answer_a_roll_call_is_hung_up_on_and_vouched_for_once_it_has(
    world: Any, job: int, tmp_path: Path
) -> None:
    beside = Beside(world, job, tmp_path)
    before = beside.connection()
    world.report(job, NodePhase.ENDED, rank=1, exit_code=1, failed_stage="run")
    assert not world.view(job).tasks[0].attempts[0].nodes[0].connected
    assert beside.goes_round() == []
    assert before.is_over
    after = beside.connection()
    (turn,) = beside.goes_round()
    assert turn.event == events.NodeReported(0, 1, 0, NodePhase.RUNNING)
    assert not after.is_over
    world.tell(job, turn.event)
    assert world.job(job)["status"] == "RUNNING"
    world.report(job, NodePhase.ENDED, rank=0, interrupted=True)
    assert world.job(job)["status"] == "FAILED"
