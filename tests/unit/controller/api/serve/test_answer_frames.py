"""Where a stream of events may be interrupted by one more event."""

from __future__ import annotations

import json

import pytest

from perdure.controller.api.serve.answer_frames import AnswerFraming, error_event

EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
PLAIN = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
EVENT = b"data: {}\n\n"


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


@pytest.mark.parametrize(
    ("received", "is_between"),
    [
        (b"", False),
        (EVENTS[:-1], False),
        (EVENTS, True),
        (EVENTS + chunk(EVENT), True),
        (EVENTS + chunk(EVENT) * 3, True),
        (EVENTS + chunk(EVENT)[:-1], False),  # within a chunk
        (EVENTS + chunk(EVENT) + b"1", False),  # within the size of the next one
        (EVENTS + chunk(b"data: {}\n"), False),  # within an event
        (EVENTS + chunk(b"data: {}\n") + chunk(b"\n"), True),
        (EVENTS + chunk(b"data: {}\r\n\r\n"), True),
        (EVENTS + chunk(EVENT) + b"0\r\n\r\n", False),  # it has ended
        (EVENTS + chunk(EVENT) + b"0\r\nX: y\r\n\r\n" + EVENTS, True),  # the next answer
        (PLAIN + EVENTS + chunk(EVENT), True),
        (PLAIN, False),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + EVENTS, True),
        (b"HTTP/1.1 204 No Content\r\n\r\n" + EVENTS, True),
        (EVENTS.replace(b"text/event-stream", b"text/plain") + chunk(EVENT), False),
        (EVENTS.replace(b"\r\n\r\n", b"\r\nContent-Encoding: gzip\r\n\r\n") + chunk(EVENT), False),
        (b"HTTP/1.1 101 Switching Protocols\r\n\r\n" + EVENTS, False),
        (b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n" + EVENT, False),  # ends with the connection
        (EVENTS + b"not a size\r\n" + chunk(EVENT), False),
        (b"x" * 100_000, False),
    ],
)
@pytest.mark.parametrize("step", [1, 7, 1_000_000])
def test_framing__knows_where_an_event_may_follow(received: bytes, is_between: bool, step: int) -> None:
    framing = AnswerFraming()
    for start in range(0, len(received), step):
        framing.feed(received[start : start + step])
    assert framing.is_between_events is is_between


def test_error_event__is_a_chunk_that_clients_of_models_understand() -> None:
    size, _, event = error_event("replica 3 was lost", "replica_lost").partition(b"\r\n")
    assert len(event) == int(size, 16) + 2
    kind, data = event.decode().rstrip().split("\n")
    assert kind == "event: error"
    error = json.loads(data.removeprefix("data: "))["error"]
    assert error == {"message": "replica 3 was lost", "type": "replica_lost"}
