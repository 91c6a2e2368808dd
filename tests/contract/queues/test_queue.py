"""What every notice queue promises."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Event
from typing import Any

import pytest

from perdure.controller.clouds.queues import Heard, MalformedMessage, Message, Word
from perdure.recovery.market import FaultKind

AT = 1_800_000_000.0


def test_what_the_cloud_says_is_heard_in_its_words(bench: Any) -> None:
    ids = {word: bench.id_of(number) for number, word in enumerate(bench.words)}
    for word, id in ids.items():
        bench.say(word, id, AT)
    heard = {told.word: told for told in everything(bench)}
    assert heard == {
        word: Heard(word, id, AT + bench.notice_s if word is Word.NOTICE else None) for word, id in ids.items()
    }


def test_what_is_not_deleted_comes_again_and_what_is_does_not(bench: Any) -> None:
    bench.say(bench.words[0], bench.id_of(1), AT)
    assert [bench.queue.read(one).instance_id for one in bench.queue.receive()] == [bench.id_of(1)]
    again = received_again(bench)
    assert [bench.queue.read(one).instance_id for one in again] == [bench.id_of(1)]
    bench.queue.delete(again)
    assert bench.left() == 0
    bench.queue.delete(again)


def test_more_than_one_call_gives_are_all_heard(bench: Any) -> None:
    for number in range(25):
        bench.say(bench.words[0], bench.id_of(number), AT)
    assert {told.instance_id for told in everything(bench)} == {bench.id_of(number) for number in range(25)}


@pytest.mark.parametrize(
    "text", ["", "no JSON", "[]", "null", "7", '"text"', "{}", '{"source": "aws.ec2"}', "[" * 20_000, '{"data": 7}']
)
def test_what_the_cloud_does_not_say_is_malformed(bench: Any, text: str) -> None:
    with pytest.raises(MalformedMessage):
        bench.queue.read(Message("receipt", text))


def test_what_does_not_count_is_nothing(bench: Any) -> None:
    assert [bench.queue.read(Message("receipt", text)) for text in bench.others] == [None] * len(bench.others)


def test_a_throttled_call_is_to_be_made_later(bench: Any) -> None:
    bench.refuse(1)
    with pytest.raises(Exception) as caught:  # noqa: PT011
        bench.queue.receive()
    assert bench.queue.classify(caught.value).kind is FaultKind.RETRY_LATER
    bench.say(bench.words[0], bench.id_of(1), AT)
    assert bench.queue.receive()


def received_again(bench: Any) -> Sequence[Message]:
    """Once its queue shows it again, which is a second later at most."""
    for _ in range(100):
        if messages := bench.queue.receive():
            return list(messages)
        Event().wait(0.05)
    raise AssertionError("it does not come again")


def everything(bench: Any) -> list[Heard]:
    """Hears all that there is."""
    found: list[Heard] = []
    while bench.left():
        messages = bench.queue.receive()
        found += [bench.queue.read(one) for one in messages]
        bench.queue.delete(messages)
    return found
