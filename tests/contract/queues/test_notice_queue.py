"""The contract of `NoticeQueue`."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Event

import pytest

from contract.queues.queue_bench import QueueBench
from perdure.controller.clouds.base.notice_queue import MachineSignal, MalformedMessage, QueueMessage, Signal
from perdure.recovery.market.unavailable import FaultKind

AT = 1_800_000_000.0


def test_parse__returns_the_signals_of_the_cloud(bench: QueueBench) -> None:
    ids = {signal: bench.id_of(number) for number, signal in enumerate(bench.signals)}
    for signal, id in ids.items():
        bench.send(signal, id, AT)
    received = {message.signal: message for message in receive_all(bench)}
    assert received == {
        signal: MachineSignal(signal, id, AT + bench.notice_s if signal is Signal.NOTICE else None)
        for signal, id in ids.items()
    }


def test_receive__returns_a_message_until_it_is_deleted(bench: QueueBench) -> None:
    bench.send(bench.signals[0], bench.id_of(1), AT)
    assert ids_in(bench, bench.queue.receive()) == [bench.id_of(1)]
    second = receive_again(bench)
    assert ids_in(bench, second) == [bench.id_of(1)]
    bench.queue.delete(second)
    assert bench.num_left() == 0
    bench.queue.delete(second)


def test_receive__returns_more_than_one_batch(bench: QueueBench) -> None:
    for number in range(25):
        bench.send(bench.signals[0], bench.id_of(number), AT)
    assert {message.instance_id for message in receive_all(bench)} == {bench.id_of(number) for number in range(25)}


@pytest.mark.parametrize(
    "text", ["", "no JSON", "[]", "null", "7", '"text"', "{}", '{"source": "aws.ec2"}', "[" * 20_000, '{"data": 7}']
)
def test_parse__rejects_a_malformed_message(bench: QueueBench, text: str) -> None:
    with pytest.raises(MalformedMessage):
        bench.queue.parse(QueueMessage("receipt", text))


def test_parse__ignores_events_that_do_not_matter(bench: QueueBench) -> None:
    assert [bench.queue.parse(QueueMessage("receipt", text)) for text in bench.others] == [()] * len(bench.others)


def test_classify__delays_a_throttled_call(bench: QueueBench) -> None:
    bench.throttle(1)
    with pytest.raises(Exception) as caught:  # noqa: PT011
        bench.queue.receive()
    assert bench.queue.classify(caught.value).kind is FaultKind.RETRY_LATER
    bench.send(bench.signals[0], bench.id_of(1), AT)
    assert bench.queue.receive()


def receive_again(bench: QueueBench) -> Sequence[QueueMessage]:
    """The queue delivers it again after a second at most."""
    for _ in range(100):
        if messages := bench.queue.receive():
            return list(messages)
        Event().wait(0.05)
    raise AssertionError("it is not delivered again")


def ids_in(bench: QueueBench, messages: Sequence[QueueMessage]) -> list[str]:
    """The machines that the messages are about."""
    return [signal.instance_id for one in messages for signal in bench.queue.parse(one)]


def receive_all(bench: QueueBench) -> list[MachineSignal]:
    """Receive all messages."""
    signals: list[MachineSignal] = []
    while bench.num_left():
        messages = bench.queue.receive()
        for one in messages:
            signals += bench.queue.parse(one)
        bench.queue.delete(messages)
    return signals
