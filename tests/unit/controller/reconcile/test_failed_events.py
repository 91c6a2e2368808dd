"""Events that cannot be recorded are tried again with backoff, and then set aside; jobs and threads go on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from sqlalchemy.exc import DataError
from structlog.testing import capture_logs

from perdure.controller.peers.peer_messages import InboxReader
from perdure.controller.reconcile import loop
from perdure.controller.reconcile.failed_events import INITIAL_RETRY_S, MAX_TRIES, EventSetAside
from perdure.controller.reconcile.work_items import JobEvent
from perdure.controller.store.records import peer_messages
from perdure.controller.store.tables import TaskRow
from perdure.recovery import events
from perdure.recovery.actions import Step, TimelineEntry
from perdure.recovery.job import View
from perdure.recovery.statuses import NodePhase
from perdure.recovery.step import step
from unit.controller.world import World

Refuse = Callable[[Callable[[JobEvent], bool]], list[float]]

POISON = events.NodeReported(0, 1, 0, NodePhase.BOOTED, message="poison")


@pytest.fixture
def refuse(world: World, monkeypatch: pytest.MonkeyPatch) -> Refuse:
    """Has the database refuse some events. Returns the times of the tries."""

    def start(is_refused: Callable[[JobEvent], bool]) -> list[float]:
        record, tries = world.reconciler._recorder.record, []

        def refusing(decisions: Any, now: float) -> Any:
            if any(is_refused(decision.event) for decision in decisions):
                if len(decisions) == 1:
                    tries.append(now)
                raise DataError("UPDATE", {}, Exception("out of range"))
            return record(decisions, now)

        monkeypatch.setattr(world.reconciler._recorder, "record", refusing)
        return tries

    return start


@contextmanager
def logged(event: str) -> Iterator[list[Any]]:
    """The lines of this event that are logged meanwhile."""
    found: list[Any] = []
    with capture_logs() as lines:
        yield found
    found += [line for line in lines if line["event"] == event]


def test_event_of_a_node__is_set_aside_after_some_tries(world: World, refuse: Refuse) -> None:
    job = world.submit()
    world.run(job)
    tries = refuse(lambda event: event.event == POISON)
    with logged("event.set_aside") as lines:
        done = world.inbox.submit(JobEvent(job, POISON))
        world.pass_time(2000)
    assert len(tries) == MAX_TRIES
    pauses = [later - earlier for earlier, later in pairwise(tries)]
    assert all(later > earlier for earlier, later in pairwise(pauses)), "the pauses grow"
    assert isinstance(done.exception(0), EventSetAside)
    assert [line["job"] for line in lines] == [job]
    assert "poison" in lines[0]["event_repr"], "the log has the content"
    assert world.kinds(job).count("event.set_aside") == 1, "the timeline says so, once"
    assert world.reconciler.failed.total_set_aside == 1
    world.report(job, NodePhase.ENDED, exit_code=0)
    assert world.job(job)["status"] == "SUCCEEDED", "the job goes on"


def test_event_of_the_controller_itself__is_never_set_aside(world: World, refuse: Refuse) -> None:
    """A launch whose result is dropped would be open for ever."""
    tries = refuse(lambda event: event.performed is not None)
    job = world.submit()
    world.pass_time(4000)
    assert len(tries) > MAX_TRIES
    assert "event.set_aside" not in world.kinds(job)


def test_entry_of_an_event_set_aside__may_fail_too(world: World, refuse: Refuse) -> None:
    job = world.submit()
    refuse(lambda event: bool(event.notes))
    with logged("event.set_aside") as lines:
        world.post(JobEvent(job, notes=(TimelineEntry("node.gone"),)))
        world.pass_time(4000)
    assert len(lines) == 2, "the event, and its entry; the entry has no entry of its own"


def test_peer_message__that_is_set_aside_stays_for_another_controller(world: World, refuse: Refuse) -> None:
    job = world.submit()
    refuse(lambda event: event.message_id is not None)
    with world.database.begin() as conn:
        body = {"event": {"kind": "CancelRequested", "grace_s": 0.0}}
        peer_messages.enqueue(conn, job, body, world.clock.now())
    inbox = InboxReader(world.database, "one", world.inbox.submit, world.clock.now)
    assert inbox.poll() == 1
    world.pass_time(2000)
    assert [inbox.poll() for _ in range(3)] == [0, 0, 0], "this controller does not try it again"
    world.restart("two")
    assert InboxReader(world.database, "two", world.inbox.submit).poll() == 1
    world.settle()
    assert world.job(job)["status"] == "CANCELLED", "nothing that the user asked for is lost"


def test_error_after_the_commit__is_made_good(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The decision and its intent are recorded, and what follows from them in memory fails."""
    track, failures = world.dispatcher.track, [1]

    def fail_once(intent: Any) -> None:
        if failures:
            raise LookupError(f"a bug {failures.pop()}")
        track(intent)

    monkeypatch.setattr(world.dispatcher, "track", fail_once)
    with logged("event.failed") as lines:
        first, other = world.submit(), world.submit()
    assert [line["job"] for line in lines] == [first]
    world.run(other)
    assert world.job(other)["status"] == "RUNNING", "without a pause"
    world.pass_time(2 * INITIAL_RETRY_S)
    world.run(first)
    assert world.job(first)["status"] == "RUNNING"
    assert len(world.living()) == 2


def test_wake_time_that_is_no_number__is_not_recorded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rules return none; here one of them has a defect."""
    job, other = world.submit(), world.submit()
    world.run(job)
    notice = events.PreemptionNotice(0, 1, 0, world.clock.now() + 60)

    def defective(view: View, event: events.Event, now: float) -> Step:
        decided = step(view, event, now)
        return replace(decided, wake_at=float("nan")) if event == notice else decided

    monkeypatch.setattr(loop, "step", defective)
    with logged("event.failed") as lines:
        world.deliver(job, notice)
        world.pass_time(10)
    assert [line["job"] for line in lines] == [job]
    assert "node.notice" not in world.kinds(job)
    world.run(other)
    assert world.job(other)["status"] == "RUNNING"
    assert math.isfinite(world.reconciler.next_due())


def test_intent_that_cannot_be_sent__is_sent_later(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    perform, failures = world.dispatcher.perform, [1]

    def fail_once(*args: Any) -> Any:
        if failures:
            raise LookupError(f"a bug {failures.pop()}")
        return perform(*args)

    monkeypatch.setattr(world.dispatcher, "perform", fail_once)
    with logged("item.failed") as lines:
        job = world.submit()
        world.pass_time(2 * INITIAL_RETRY_S)
    assert [line["job"] for line in lines] == [job]
    world.run(job)
    assert world.job(job)["status"] == "RUNNING"


def test_unreadable_job__does_not_hold_up_the_adoption_of_others(world: World) -> None:
    ids = [world.submit() for _ in range(5)]
    tasks = TaskRow.__table__  # type: ignore[attr-defined]
    poisoned = ids[2]
    with world.database.begin() as conn:
        conn.execute(tasks.update().where(tasks.c.job_id == poisoned).values(state="DREAMING"))
    with logged("job.unreadable") as lines:
        world.restart("two")
        world.inbox.adopt([])
        world.settle()
    assert [line["job"] for line in lines] == [poisoned]
    assert sorted(world.inbox.owned) == [job for job in ids if job != poisoned]
