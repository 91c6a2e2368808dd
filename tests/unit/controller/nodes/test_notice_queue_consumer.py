"""Signals of a cloud's queue have the effect of a notice of the node, exactly once, and no signal is lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Thread
from types import SimpleNamespace
from typing import Any

import pytest

from perdure.controller.clouds.base.notice_queue import MachineSignal, MalformedMessage, QueueMessage, Signal
from perdure.controller.clouds.base.protocol import Fault
from perdure.controller.nodes import notice_queue_consumer
from perdure.controller.nodes.notice_queue_consumer import (
    ASSUMED_NOTICE_S,
    MAX_BACKOFF_S,
    NoticeQueueConsumer,
    NoticeQueueConsumers,
)
from perdure.controller.reconcile.inbox import MAX_NOTICE_S
from perdure.recovery import events
from perdure.recovery.directive import Target
from perdure.recovery.market.unavailable import FaultKind
from perdure.recovery.reasons import Reason
from support.helpers.timing import wait_until
from unit.controller.world import World


@dataclass
class Queue:
    """A `NoticeQueue` whose messages come from the test."""

    name: str = "queue"
    cloud: str = "fake"
    idle_s: float = 3.0
    waiting: dict[str, MachineSignal | None] = field(default_factory=dict)
    fails: list[str] = field(default_factory=list)  # what the next calls raise; "" for nothing

    def enqueue(self, *signals: MachineSignal | None) -> None:
        """Add messages; None is one that cannot be parsed."""
        for signal in signals:
            self.waiting[f"{len(self.waiting)}"] = signal

    def receive(self) -> Sequence[QueueMessage]:
        self._fail()
        return [QueueMessage(receipt, "nonsense" if signal is None else "") for receipt, signal in self.waiting.items()]

    def delete(self, messages: Sequence[QueueMessage]) -> None:
        self._fail()
        for message in messages:
            self.waiting.pop(message.receipt, None)

    def parse(self, message: QueueMessage) -> Sequence[MachineSignal]:
        if (signal := self.waiting[message.receipt]) is None:
            raise MalformedMessage("no JSON")
        return [signal]

    def classify(self, error: Exception) -> Fault:
        return Fault(FaultKind.RETRY_LATER, Reason.THROTTLED, "Slow", str(error), 5.0 if "5 s" in str(error) else None)

    def _fail(self) -> None:
        if self.fails and (problem := self.fails.pop(0)):
            raise OSError(problem)


@pytest.fixture
def queue() -> Queue:
    return Queue()


def consume(world: World, queue: Queue) -> NoticeQueueConsumer:
    """Poll once with a new consumer."""
    consumer = NoticeQueueConsumer(queue, world.database, world.inbox)
    poll(world, consumer)
    return consumer


def poll(world: World, consumer: NoticeQueueConsumer) -> None:
    """Poll once, while the reconciler runs."""
    thread = Thread(target=consumer.poll_once)
    thread.start()
    while thread.is_alive():
        world.settle()
        thread.join(0.001)
    world.settle()


def running(world: World) -> tuple[int, str]:
    """The id of a running job, and that of its machine."""
    job = world.submit()
    world.run(job)
    (machine,) = world.living()
    return job, machine


def test_notice__drains_the_node_and_launches_a_replacement(world: World, queue: Queue) -> None:
    job, machine = running(world)
    deadline = world.clock.now() + 120
    queue.enqueue(MachineSignal(Signal.NOTICE, machine, deadline))
    consume(world, queue)
    assert world.view(job).tasks[0].attempts[0].nodes[0].notice_deadline == deadline
    assert ((job, 0, 1), Target.DRAIN) in world.directives
    assert len(world.living()) == 2
    assert not queue.waiting


@pytest.mark.parametrize("is_node_first", [True, False])
def test_notice__has_one_effect_if_the_node_sends_it_too(world: World, queue: Queue, is_node_first: bool) -> None:
    job, machine = running(world)
    deadline = world.clock.now() + 120
    if is_node_first:
        world.deliver(job, events.PreemptionNotice(0, 1, 0, deadline))
    queue.enqueue(
        MachineSignal(Signal.NOTICE, machine, deadline + 7), MachineSignal(Signal.NOTICE, machine, deadline + 7)
    )
    consume(world, queue)
    world.deliver(job, events.PreemptionNotice(0, 1, 0, deadline))
    assert world.kinds(job).count("node.notice") == 1
    assert world.view(job).tasks[0].attempts[0].nodes[0].notice_deadline == deadline, "the deadline of the node counts"
    assert len(world.view(job).tasks[0].attempts) == 2
    assert not queue.waiting
    other = world.submit()
    assert [u.unconfirmed for u in world.market.view(other).unavailable if u.from_preemption] == [False]


@pytest.mark.parametrize("is_confirmed", [True, False])
def test_notice__with_an_earlier_deadline_than_the_nodes_shortens_its_drain(
    world: World, queue: Queue, is_confirmed: bool
) -> None:
    job, machine = running(world)
    deadline = world.clock.now() + 58
    world.deliver(job, events.PreemptionNotice(0, 1, 0, deadline, confirmed=is_confirmed))
    queue.enqueue(MachineSignal(Signal.NOTICE, machine, deadline - 30))
    consume(world, queue)
    attempt = world.view(job).tasks[0].attempts[0]
    assert attempt.nodes[0].notice_deadline == attempt.drain_until == deadline - 30
    queue.enqueue(MachineSignal(Signal.NOTICE, machine, None))
    consume(world, queue)
    attempt = world.view(job).tasks[0].attempts[0]
    assert attempt.nodes[0].notice_deadline == attempt.drain_until == deadline - 30, "no deadline is no earlier one"
    assert world.kinds(job).count("node.notice") == 1


def test_rebalance_recommendation__is_recorded_once_and_moves_nothing(world: World, queue: Queue) -> None:
    job, machine = running(world)
    for _ in range(2):
        queue.enqueue(MachineSignal(Signal.AT_RISK, machine))
        consume(world, queue)
    assert world.kinds(job).count("node.rebalance_recommended") == 1
    assert world.view(job).tasks[0].attempts[0].offer.key in world.market.view().history.advice
    assert len(world.view(job).tasks[0].attempts) == 1


def test_ending__makes_the_controller_describe_the_machine_at_once(world: World, queue: Queue) -> None:
    job, machine = running(world)
    world.cloud.preempt(machine)
    queue.enqueue(MachineSignal(Signal.ENDING, machine))
    consume(world, queue)
    assert [attempt.generation for attempt in world.view(job).tasks[0].attempts] == [2]


def test_signal__of_an_unknown_machine_is_ignored(world: World, queue: Queue) -> None:
    job, machine = running(world)
    before = world.kinds(job)
    queue.enqueue(MachineSignal(Signal.NOTICE, "i-of-others", 1.0), MachineSignal(Signal.ENDING, "i-of-others"))
    consume(world, queue)
    queue.cloud = "another"
    queue.enqueue(MachineSignal(Signal.NOTICE, machine, 1.0))
    consume(world, queue)
    assert world.kinds(job) == before
    assert not queue.waiting


def test_malformed_message__is_deleted_and_blocks_nothing(world: World, queue: Queue) -> None:
    job, machine = running(world)
    queue.enqueue(None, MachineSignal(Signal.NOTICE, machine, world.clock.now() + 120), None)
    consume(world, queue)
    assert "node.notice" in world.kinds(job)
    assert not queue.waiting


def test_poisoned_message__is_deleted_and_blocks_nothing(world: World, queue: Queue) -> None:
    """Whoever may write to the queue may send any instance id; PostgreSQL takes no NUL."""
    job, machine = running(world)
    queue.enqueue(
        MachineSignal(Signal.NOTICE, "i-\0"), MachineSignal(Signal.NOTICE, "i-\ud800"),
        MachineSignal(Signal.NOTICE, machine, world.clock.now() + 120),
    )  # fmt: skip
    consume(world, queue)
    assert "node.notice" in world.kinds(job)
    assert not queue.waiting


@pytest.mark.parametrize("in_s", [float("nan"), float("inf"), -1e9, 1e12])
def test_deadline__of_a_message_is_moved_into_the_next_hour(world: World, queue: Queue, in_s: float) -> None:
    job, machine = running(world)
    now = world.clock.now()
    queue.enqueue(MachineSignal(Signal.NOTICE, machine, now + in_s))
    consume(world, queue)
    deadline = world.view(job).tasks[0].attempts[0].nodes[0].notice_deadline
    assert now <= deadline <= now + MAX_NOTICE_S


def test_thread__survives_an_error_that_cannot_be_classified(world: World, queue: Queue) -> None:
    consumer = NoticeQueueConsumer(queue, world.database, world.inbox)
    queue.classify = None  # type: ignore[assignment, method-assign]
    polls: list[int] = []

    def receive() -> list[QueueMessage]:
        polls.append(1)
        if len(polls) == 1:
            raise OSError("broken")
        consumer.stop()
        return []

    queue.receive = receive  # type: ignore[method-assign]
    consumer._run()
    assert len(polls) == 2


def test_message__delivered_again_has_no_effect(world: World, queue: Queue) -> None:
    job, machine = running(world)
    queue.enqueue(MachineSignal(Signal.NOTICE, machine, world.clock.now() + 120))
    queue.fails = ["", "the connection broke"]
    consumer = consume(world, queue)
    assert queue.waiting
    poll(world, consumer)
    assert world.kinds(job).count("node.notice") == 1
    assert not queue.waiting


def test_failing_queue__is_polled_with_exponential_backoff(world: World, queue: Queue) -> None:
    consumer = NoticeQueueConsumer(queue, world.database, world.inbox)
    queue.fails = ["too many calls"] * 20
    pauses = []
    for _ in range(20):
        poll(world, consumer)
        pauses.append(consumer.backoff_s)
    assert all(0 < pause <= MAX_BACKOFF_S for pause in pauses)
    assert pauses[0] < 2 < pauses[4] < pauses[-1]
    assert pauses[-1] > MAX_BACKOFF_S / 3
    poll(world, consumer)
    assert consumer.backoff_s == queue.idle_s
    queue.fails = ["wait 5 s"]
    poll(world, consumer)
    assert consumer.backoff_s >= 5


def test_empty_queue__is_polled_less_often_than_a_busy_one(world: World, queue: Queue) -> None:
    consumer = consume(world, queue)
    assert consumer.backoff_s == queue.idle_s
    queue.enqueue(MachineSignal(Signal.ENDING, "i-of-others"))
    poll(world, consumer)
    assert consumer.backoff_s == 0


def test_notice__without_a_deadline_has_the_shortest_notice(world: World, queue: Queue) -> None:
    job, machine = running(world)
    before = world.clock.now()
    queue.enqueue(MachineSignal(Signal.NOTICE, machine))
    consume(world, queue)
    deadline = world.view(job).tasks[0].attempts[0].nodes[0].notice_deadline
    assert before + ASSUMED_NOTICE_S <= deadline <= world.clock.now() + ASSUMED_NOTICE_S
    assert not queue.waiting


@pytest.mark.parametrize("signal", [Signal.NOTICE, Signal.AT_RISK, Signal.ENDING])
def test_message__is_kept_until_its_effect_is_recorded(
    world: World, queue: Queue, signal: Signal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reconciler may be busy, or its database away. The message is delivered again later."""
    _, machine = running(world)
    queue.enqueue(MachineSignal(signal, machine, world.clock.now() + 120 if signal is Signal.NOTICE else None))
    consumer = NoticeQueueConsumer(queue, world.database, world.inbox)
    with monkeypatch.context() as patch:
        patch.setattr(notice_queue_consumer, "RECORD_TIMEOUT_S", 0.01)
        consumer.poll_once()  # nothing runs the reconciler
    assert queue.waiting
    assert consumer.backoff_s > 0
    poll(world, consumer)
    assert not queue.waiting


def test_queue__that_a_cloud_gets_later_is_consumed_until_the_controller_stops(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notice_queue_consumer, "NEW_QUEUES_INTERVAL_S", 0.01)
    first, later, too_late = Queue("first"), Queue("later"), Queue("too late")
    for one in (first, later, too_late):
        one.enqueue(MachineSignal(Signal.ENDING, "a machine of nobody"))
    queues = [first]
    cloud: Any = SimpleNamespace(notice_queues=lambda: list(queues))
    consumers = NoticeQueueConsumers([cloud], world.database, world.inbox)
    consumers.start()
    wait_until(lambda: not first.waiting, "the first queue")
    queues.append(later)
    wait_until(lambda: not later.waiting, "the queue that came later")
    consumers.stop()
    queues.append(too_late)
    consumers.start_new()
    assert [name for _, name in consumers._consumers] == ["first", "later"]
