"""Where a stream of events may be interrupted by one more event."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perdure.controller.api.serve.answer_frames import MAX_CREDIT, MAX_LINE_BYTES, AnswerFraming, error_event

EVENTS = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream; charset=utf-8\r\nTransfer-Encoding: chunked\r\n\r\n"
PLAIN = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello"
EVENT = b"data: {}\n\n"


BEGINNING = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
CHUNKED = b"Transfer-Encoding: chunked\r\n"
PIECES = [
    *(
        EVENTS,
        PLAIN,
        EVENT,
        BEGINNING,
        CHUNKED,
        b"\r\n",
        b"\n",
        b"0\r\n\r\n",
        b"1\r\nx\r\n",
        b"9;a=b\r\ndata: x\n\n\r\n",
    ),
    *(b"-6\r\nX", b"+6\r\n", b"1_0\r\n", b" 1\r\n", b"Content-Length: -50\r\n\r\n", b"Content-Length: 3\r\n"),
    *(b"HTTP/1.1 204 No Content\r\n\r\n", b"f" * 20, b"x" * MAX_LINE_BYTES, b";" * 70_000),
]


class CountedBytes(bytes):
    """Bytes that count how many of them are copied, and fail if they are read without an end."""

    num_reads = num_copied = 0

    def __getitem__(self, key: Any) -> Any:
        piece = super().__getitem__(key)
        self._note_read()
        self.num_copied += len(piece)
        return piece

    def find(self, *args: Any) -> int:
        self._note_read()
        return super().find(*args)

    def _note_read(self) -> None:
        self.num_reads += 1
        if self.num_reads > 10 * len(self) + 10:
            raise AssertionError("it makes no progress")


def fed(*parts: bytes) -> AnswerFraming:
    framing = AnswerFraming()
    for part in parts:
        framing.feed(CountedBytes(part))
    return framing


def state(framing: AnswerFraming) -> dict[str, Any]:
    return {name: getattr(framing, name) for name in AnswerFraming.__slots__}


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


@pytest.mark.parametrize("length", [b"-6", b"+6", b"1_0", b" 6", b"6 ", b"", b"0x6", "\u0666".encode(), b"6" * 100])
def test_framing__follows_nothing_after_what_is_no_length(length: bytes) -> None:
    of_chunk = EVENTS + length + b"\r\nX"
    of_body = BEGINNING + b"Content-Length:" + (length.strip() or b"-1") + b"\r\n\r\nX"
    for hostile in (of_chunk, *((of_body,) if length.strip() != b"6" else ())):
        assert state(fed(hostile)) == state(fed(b"no answer\r\n\r\n")) | {"_credit": fed(hostile)._credit}


@pytest.mark.parametrize("num_digits", range(1, 20))
def test_framing__ends_at_a_length_that_leads_back_to_its_head(num_digits: int) -> None:
    head = BEGINNING + b"Content-Length: -%s\r\n\r\n"
    size = len(head) - len(b"%s") + num_digits
    assert not fed(head % str(size).zfill(num_digits).encode() + b"X").is_between_events
    assert not fed(EVENTS + b"-%s\r\nX" % str(num_digits + 3).zfill(num_digits).encode()).is_between_events


@pytest.mark.parametrize(
    "lengths",
    [b"Content-Length: 5\r\nContent-Length: 6\r\n", CHUNKED + b"Content-Length: 5\r\n", b"Content-Length: 5, 6\r\n"],
)
def test_framing__follows_no_answer_with_two_lengths(lengths: bytes) -> None:
    assert not fed(BEGINNING + lengths + b"\r\n").is_between_events
    assert not fed(BEGINNING + lengths + b"\r\nhello" + EVENTS).is_between_events


@pytest.mark.parametrize(
    "answer",
    [
        BEGINNING + b"Content-Length: 5\r\n\r\nhello",
        BEGINNING + b"CONTENT-LENGTH:5\r\nX: y\r\n\r\nhello",
        BEGINNING + b"Content-Length: 0\r\n\r\n",
        BEGINNING + b"Content-Length: 5\r\n\r\nhell",
        BEGINNING + b"Content-Length: 5\r\n\r\nhello!",
        BEGINNING + b"Content-Length: 5, 5\r\n\r\nhello",
        BEGINNING + b"Content-Length : 5\r\n\r\nhello",
        BEGINNING + b"X: content-length\r\nContent-Length: 5\r\n\r\nhello",
        BEGINNING + CHUNKED + b"X: content-length: 5\r\n\r\nhello",
        b"HTTP/1.1 204 No Content\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/1.1 304 Not Modified\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\nContent-Length: 5\r\n\r\nhello",
        b"http/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
        b"HTTP/2.0 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    ],
)
def test_framing__takes_a_small_answer_at_once_as_byte_by_byte(answer: bytes) -> None:
    at_once = fed(answer, EVENTS)
    assert state(at_once) == state(fed(*(answer[index : index + 1] for index in range(len(answer))), EVENTS))


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sampled_from(PIECES) | st.binary(max_size=20), max_size=12),
    st.lists(st.integers(0, 100_000), max_size=12),
    st.booleans(),
)
def test_framing__ends_and_does_not_depend_on_how_bytes_are_split(
    pieces: list[bytes], cuts: list[int], begins_with_events: bool
) -> None:
    received = b"".join([EVENTS, *pieces] if begins_with_events else pieces)
    at = sorted({0, len(received), *(cut % (len(received) + 1) for cut in cuts)})
    parts = [received[start:end] for start, end in itertools.pairwise(at)]
    assert state(fed(*parts)) == state(fed(received))
    if len(received) < 2_000:
        assert state(fed(*(received[index : index + 1] for index in range(len(received))))) == state(fed(received))


@pytest.mark.parametrize("text", [b"x", b"data: x\n\n"])
def test_framing__copies_each_byte_a_few_times_at_most(text: bytes) -> None:
    received = CountedBytes(EVENTS + chunk(text) * (200_000 // len(text)))
    AnswerFraming().feed(received)
    assert received.num_copied < 2 * len(received)
    halves = [CountedBytes(b"HTTP/1.1"), CountedBytes(bytes(received)[len("HTTP/1.1") :])]
    framing = fed(halves[0])
    framing.feed(halves[1])
    assert halves[1].num_copied < 2 * len(received)


@pytest.mark.parametrize(
    ("received", "is_followed"),
    [
        (EVENTS + chunk(b"x") * MAX_CREDIT + chunk(EVENT), False),
        (EVENTS + chunk(EVENT) * (MAX_CREDIT // 4), True),
        (EVENTS + b"0\r\n" + b"a\r\n" * MAX_CREDIT + b"\r\n" + EVENTS, False),  # the trailer
        ((EVENTS + chunk(EVENT) + b"0\r\n\r\n") * (MAX_CREDIT // 50) + EVENTS, True),
    ],
)
def test_framing__stops_to_follow_tiny_pieces(received: bytes, is_followed: bool) -> None:
    assert fed(received).is_between_events is is_followed


def test_error_event__is_a_chunk_that_clients_of_models_understand() -> None:
    size, _, event = error_event("replica 3 was lost", "replica_lost").partition(b"\r\n")
    assert len(event) == int(size, 16) + 2
    kind, data = event.decode().rstrip().split("\n")
    assert kind == "event: error"
    error = json.loads(data.removeprefix("data: "))["error"]
    assert error == {"message": "replica 3 was lost", "type": "replica_lost"}
