"""What comes for a job that has a decision waiting holds up no other, and is overtaken by nothing."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import event

from perdure.controller.store import queries
from perdure.controller.turns import Turn
from perdure.recovery import events
from perdure.recovery.actions import Note
from perdure.recovery.statuses import NodePhase


@pytest.fixture
def commits(world: Any) -> Any:
    """How many transactions were committed since."""
    seen: list[object] = []
    event.listen(world.database, "commit", seen.append)
    return seen


def test_reports_that_come_in_pairs_are_recorded_in_crowds(world: Any, commits: list[object]) -> None:
    ids = [world.submit() for _ in range(20)]
    for id in ids:
        world.report(id, NodePhase.BOOTED)
    commits.clear()
    for id in ids:
        for phase in (NodePhase.MOUNTING, NodePhase.READY, NodePhase.RUNNING):
            world.reconciler.tell(id, events.NodeReported(0, 1, 0, phase))
    world.settle()
    assert [world.job(id)["status"] for id in ids] == ["RUNNING"] * 20
    assert len(commits) <= 5, "one for each phase, rather than for each job and phase"


def test_what_is_said_of_one_job_stays_in_order(world: Any) -> None:
    ids = [world.submit() for _ in range(3)]
    for number in range(30):
        for id in ids:
            world.reconciler.post(Turn(id, notes=(Note("said", data={"number": number}),)))
    world.settle()
    for id in ids:
        with world.database.connect() as conn:
            said = [line["data"]["number"] for line in queries.timeline(conn, id) if line["kind"] == "said"]
        assert said == list(range(30))


def test_a_command_waits_for_what_came_before_it(world: Any) -> None:
    """A recheck that finds a job gone comes after all that was said of the job before."""
    first, second = world.submit(), world.submit()
    said = []
    for number in range(3):
        said.append(world.reconciler.post(Turn(first, notes=(Note("said", data={"number": number}),))))
        said.append(world.reconciler.post(Turn(second, notes=(Note("said", data={"number": number}),))))
    with world.database.begin() as conn:
        conn.exec_driver_sql(f"UPDATE job SET owner = 'two', epoch = epoch + 1 WHERE id = {second}")
    rechecked = world.reconciler.recheck()
    world.settle()
    assert rechecked.done()
    assert all(one.done() for one in said)
    assert world.reconciler.view(second) is None
    assert world.kinds(first).count("said") == 3
