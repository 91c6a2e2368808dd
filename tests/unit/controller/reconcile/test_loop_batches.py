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


def test_many_events__of_one_job_delay_no_other_job(world: World, commits: list[object]) -> None:
    """As when a node sends what it likes: the other job's event is in the first transaction, not behind the 1,000."""
    busy, other = world.submit(), world.submit()
    world.report(other, NodePhase.BOOTED)
    for number in range(1_000):
        world.inbox.submit(JobEvent(busy, notes=(TimelineEntry("test.event", data={"number": number}),)))
    recorded = world.inbox.submit(JobEvent(other, events.NodeReported(0, 1, 0, NodePhase.MOUNTING)))
    accepted = world.inbox.recheck()
    commits.clear()
    for _ in range(3):
        world.reconciler.run_once(block=False)
    assert (recorded.done(), accepted.done()) == (True, True)
    assert len(commits) <= 4
    assert world.inbox.backlog() == 0, "launches are not refused because of one job"


def test_jobs_that_wait__leave_room_for_those_in_the_queue(world: World) -> None:
    world.reconciler._batch_size = 4
    busy, other = [world.submit() for _ in range(6)], world.submit()
    for id in (id for id in busy for _ in range(10)):
        world.inbox.submit(JobEvent(id, notes=(TimelineEntry("test.event"),)))
    while world.inbox.backlog():
        world.reconciler.run_once(block=False)
    assert len(world.reconciler._turns) >= 4, "they alone could fill every transaction"
    new = world.inbox.submit(JobEvent(other))
    world.reconciler.run_once(block=False)
    assert new.done()


def test_stop__handles_what_is_queued_first(world: World) -> None:
    job = world.submit()
    recorded = [world.inbox.submit(JobEvent(job, notes=(TimelineEntry("test.event"),))) for _ in range(10)]
    world.inbox.queue.enqueue(None)
    while world.reconciler.run_once(block=True):
        pass
    assert all(one.done() for one in recorded)


def test_recheck__forwards_the_events_of_a_job_that_is_lost(world: World) -> None:
    """In their order, whether they come before the recheck or after it."""
    forwarded: list[JobEvent] = []
    world.forward = forwarded.append
    kept, lost = world.submit(), world.submit()
    for number in range(3):
        for id in (kept, lost):
            world.inbox.submit(JobEvent(id, notes=(TimelineEntry("test.event", data={"number": number}),)))
    with world.database.begin() as conn:
        conn.exec_driver_sql(f"UPDATE job SET owner = 'two', lease_epoch = lease_epoch + 1 WHERE id = {lost}")
    rechecked = world.inbox.recheck()
    world.settle()
    assert rechecked.done()
    assert world.inbox.view(lost) is None
    assert [(event.job_id, event.notes[0].data["number"]) for event in forwarded] == [(lost, n) for n in range(3)]
    assert world.kinds(kept).count("test.event") == 3
