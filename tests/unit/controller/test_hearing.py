"""What follows from a cloud's queue: as if the node had said it, once, and nothing is lost on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Thread
from typing import Any

import pytest

from perdure.controller.clouds.base import Fault
from perdure.controller.clouds.queues import Heard, MalformedMessage, Message, Word
from perdure.controller.hearing import LONGEST_PAUSE_S, Hearing
from perdure.recovery import events
from perdure.recovery.directive import Want
from perdure.recovery.market import FaultKind
from perdure.recovery.reasons import Reason


@dataclass
class Queue:
    """A `NoticeQueue` whose messages are what the test `put`s; `fails`: what its next calls raise."""

    name: str = "queue"
    cloud: str = "fake"
    idle_s: float = 3.0
    waiting: dict[str, Heard | None] = field(default_factory=dict)
    fails: list[str] = field(default_factory=list)

    def put(self, *heard: Heard | None) -> None:
        for one in heard:
            self.waiting[f"{len(self.waiting)}"] = one

    def receive(self) -> Sequence[Message]:
        self._fail()
        return [Message(receipt, "nonsense" if heard is None else "") for receipt, heard in self.waiting.items()]

    def delete(self, messages: Sequence[Message]) -> None:
        self._fail()
        for message in messages:
            self.waiting.pop(message.receipt, None)

    def read(self, message: Message) -> Heard | None:
        if (heard := self.waiting[message.receipt]) is None:
            raise MalformedMessage("no JSON")
        return heard

    def classify(self, error: Exception) -> Fault:
        return Fault(FaultKind.RETRY_LATER, Reason.THROTTLED, "Slow", str(error), 5.0 if "5 s" in str(error) else None)

    def _fail(self) -> None:
        if self.fails and (problem := self.fails.pop(0)):
            raise OSError(problem)


@pytest.fixture
def queue() -> Queue:
    return Queue()


def hear(world: Any, queue: Queue) -> Hearing:
    """One round, while the reconciler turns."""
    hearing = Hearing(queue, world.database, world.reconciler)
    go_round(world, hearing)
    return hearing


def go_round(world: Any, hearing: Hearing) -> None:
    thread = Thread(target=hearing.round)
    thread.start()
    while thread.is_alive():
        world.settle()
        thread.join(0.001)
    world.settle()


def running(world: Any) -> tuple[int, str]:
    """A job that runs, and its machine."""
    job = world.submit()
    world.run(job)
    (machine,) = world.living()
    return job, machine


def test_a_notice_drains_the_node_and_buys_another(world: Any, queue: Queue) -> None:
    job, machine = running(world)
    deadline = world.clock.now() + 120
    queue.put(Heard(Word.NOTICE, machine, deadline))
    hear(world, queue)
    assert world.view(job).tasks[0].attempts[0].nodes[0].notice_deadline == deadline
    assert ((job, 0, 1), Want.DRAIN) in world.told
    assert len(world.living()) == 2
    assert not queue.waiting


@pytest.mark.parametrize("is_node_first", [True, False])
def test_what_the_node_says_too_is_told_once(world: Any, queue: Queue, is_node_first: bool) -> None:
    job, machine = running(world)
    deadline = world.clock.now() + 120
    if is_node_first:
        world.tell(job, events.NoticeGiven(0, 1, 0, deadline))
    queue.put(Heard(Word.NOTICE, machine, deadline + 7), Heard(Word.NOTICE, machine, deadline + 7))
    hear(world, queue)
    world.tell(job, events.NoticeGiven(0, 1, 0, deadline))
    assert world.kinds(job).count("node.notice") == 1
    assert world.view(job).tasks[0].attempts[0].nodes[0].notice_deadline == deadline, "the node knows it best"
    assert len(world.view(job).tasks[0].attempts) == 2
    assert not queue.waiting


def test_a_recommendation_is_evidence_and_noted_once(world: Any, queue: Queue) -> None:
    job, machine = running(world)
    for _ in range(2):
        queue.put(Heard(Word.AT_RISK, machine))
        hear(world, queue)
    assert world.kinds(job).count("node.at_risk") == 1
    assert len(world.view(job).tasks[0].attempts) == 1


def test_a_machine_that_ends_is_looked_up_at_once(world: Any, queue: Queue) -> None:
    job, machine = running(world)
    world.cloud.preempt(machine)
    queue.put(Heard(Word.ENDING, machine))
    hear(world, queue)
    assert [attempt.generation for attempt in world.view(job).tasks[0].attempts] == [2]


def test_machines_of_others_are_ignored(world: Any, queue: Queue) -> None:
    job, machine = running(world)
    before = world.kinds(job)
    queue.put(Heard(Word.NOTICE, "i-of-others", 1.0), Heard(Word.ENDING, "i-of-others"))
    hear(world, queue)
    queue.cloud = "another"
    queue.put(Heard(Word.NOTICE, machine, 1.0))
    hear(world, queue)
    assert world.kinds(job) == before
    assert not queue.waiting


def test_nonsense_is_deleted_and_holds_nothing_up(world: Any, queue: Queue) -> None:
    job, machine = running(world)
    queue.put(None, Heard(Word.NOTICE, machine, world.clock.now() + 120), None)
    hear(world, queue)
    assert "node.notice" in world.kinds(job)
    assert not queue.waiting


def test_what_was_not_deleted_is_heard_again_to_no_effect(world: Any, queue: Queue) -> None:
    job, machine = running(world)
    queue.put(Heard(Word.NOTICE, machine, world.clock.now() + 120))
    queue.fails = ["", "the line broke"]
    hearing = hear(world, queue)
    assert queue.waiting
    go_round(world, hearing)
    assert world.kinds(job).count("node.notice") == 1
    assert not queue.waiting


def test_a_queue_that_refuses_is_left_alone_for_longer_and_longer(world: Any, queue: Queue) -> None:
    hearing = Hearing(queue, world.database, world.reconciler)
    queue.fails = ["too many calls"] * 20
    pauses = []
    for _ in range(20):
        go_round(world, hearing)
        pauses.append(hearing.pause_s)
    assert all(0 < pause <= LONGEST_PAUSE_S for pause in pauses)
    assert pauses[0] < 2 < pauses[4] < pauses[-1]
    assert pauses[-1] > LONGEST_PAUSE_S / 3
    go_round(world, hearing)
    assert hearing.pause_s == queue.idle_s
    queue.fails = ["wait 5 s"]
    go_round(world, hearing)
    assert hearing.pause_s >= 5


def test_a_queue_that_has_nothing_is_left_alone_and_one_that_has_some_is_not(world: Any, queue: Queue) -> None:
    hearing = hear(world, queue)
    assert hearing.pause_s == queue.idle_s
    queue.put(Heard(Word.ENDING, "i-of-others"))
    go_round(world, hearing)
    assert hearing.pause_s == 0
