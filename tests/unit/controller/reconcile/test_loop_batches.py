"""Events that are recorded together: an event that has to wait delays no other job, and nothing overtakes it."""

from __future__ import annotations

import pytest
from sqlalchemy import event

from perdure.controller.reconcile.work_items import JobEvent
from perdure.controller.store.queries import job_listing
from perdure.recovery import events
from perdure.recovery.actions import TimelineEntry
from perdure.recovery.statuses import NodePhase
from unit.controller.world import World


@pytest.fixture
def commits(world: World) -> list[object]:
    """The transactions committed since."""
    commits: list[object] = []
    event.listen(world.database, "commit", commits.append)
    return commits


def test_events__of_several_jobs_share_a_transaction(world: World, commits: list[object]) -> None:
    ids = [world.submit() for _ in range(20)]
    for id in ids:
        world.report(id, NodePhase.BOOTED)
    commits.clear()
    for id in ids:
        for phase in (NodePhase.MOUNTING, NodePhase.READY, NodePhase.RUNNING):
            world.inbox.post(id, events.NodeReported(0, 1, 0, phase))
    world.settle()
    assert [world.job(id)["status"] for id in ids] == ["RUNNING"] * 20
    assert len(commits) <= 5, "one for each phase, not for each job and phase"


def test_events__of_one_job_stay_in_order(world: World) -> None:
    ids = [world.submit() for _ in range(3)]
    for number in range(30):
        for id in ids:
            world.inbox.submit(JobEvent(id, notes=(TimelineEntry("test.event", data={"number": number}),)))
    world.settle()
    for id in ids:
        with world.database.connect() as conn:
            numbers = [
                line["data"]["number"] for line in job_listing.timeline(conn, id) if line["kind"] == "test.event"
            ]
        assert numbers == list(range(30))


def test_command__waits_for_the_events_before_it(world: World) -> None:
    """A recheck that drops a job comes after all earlier events of that job."""
    first, second = world.submit(), world.submit()
    recorded = []
    for number in range(3):
        recorded.append(
            world.inbox.submit(JobEvent(first, notes=(TimelineEntry("test.event", data={"number": number}),)))
        )
        recorded.append(
            world.inbox.submit(JobEvent(second, notes=(TimelineEntry("test.event", data={"number": number}),)))
        )
    with world.database.begin() as conn:
        conn.exec_driver_sql(f"UPDATE job SET owner = 'two', lease_epoch = lease_epoch + 1 WHERE id = {second}")
    rechecked = world.inbox.recheck()
    world.settle()
    assert rechecked.done()
    assert all(one.done() for one in recorded)
    assert world.inbox.view(second) is None
    assert world.kinds(first).count("test.event") == 3
