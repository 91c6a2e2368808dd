"""Follows the HTTP/1.1 answers of a connection, to know where a stream of events may be interrupted by one more event.

A replica that is lost ends its streams anywhere. Where the last event was whole, callers can be told so in the stream.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from enum import Enum, auto

MAX_HEAD_BYTES, MAX_LINE_BYTES = 64 * 1024, 1024
_HEAD_END, _LINE_END = b"\r\n\r\n", b"\r\n"
_EVENT_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")
_SWITCHING, _FIRST_FINAL = 101, 200
_WITHOUT_BODY = (204, 304)
_FIRST_LINE = re.compile(rb"HTTP/1\.[01] ([0-9]{3})(?: .*)?", re.DOTALL)
_LENGTH, _CHUNK_SIZE = re.compile(rb"[0-9]{1,18}"), re.compile(rb"[0-9a-fA-F]{1,15}")
# Of the answers whose bodies have the length that they name; the length is looked for in small letters.
_PLAIN_STATUS = re.compile(rb"HTTP/1\.[01] (?:20[0-35-9]|30[0-35-9]|[45][0-9]{2})(?: [^\r]*)?\r\n")
_PLAIN_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,18})[ \t]*(?:\r\n|\Z)")
_BLANKS = b" \t"
MAX_CREDIT, _LINE_COST = 64 * 1024, 10
"""Bounds the time that tiny pieces take: each line costs so many bytes, and all bytes are credited, up to a limit."""


class _At(Enum):
    HEAD = auto()
    SIZE = auto()  # the line before a chunk
    CHUNK = auto()
    CHUNK_END = auto()
    TRAILER = auto()
    BODY = auto()  # of a known length
    UNKNOWN = auto()  # nothing is followed any more


class AnswerFraming:
    """The place in the answers of one connection. What it cannot follow, such as a WebSocket, it lets be.

    The bytes alone determine the place, however they are split. The time is linear in their number.
    """

    __slots__ = ("_at", "_buffer", "_credit", "_is_events", "_left", "_tail")

    def __init__(self) -> None:
        self._at = _At.HEAD
        self._buffer = bytearray()  # of a head or a line that is not whole yet
        self._left = 0  # bytes of a chunk or of a body
        self._is_events = False
        self._tail = b""  # the last bytes of the events
        self._credit = MAX_CREDIT

    def feed(self, data: bytes) -> None:
        """The next bytes of the replica."""
        if self._at is _At.HEAD and not self._buffer and self._is_one_small_answer(data):
            return
        position = 0
        while position < len(data) and self._at is not _At.UNKNOWN:
            before = position
            try:
                position = _STEPS[self._at](self, data, position)
            except ValueError:
                self._give_up()
            else:
                if position <= before:  # whatever the reason, the event loop must not be kept
                    self._give_up()

    @property
    def is_between_events(self) -> bool:
        """Whether an answer is a stream of events, has not ended, and one more event may follow now."""
        is_boundary = self._at is _At.SIZE and not self._buffer
        return self._is_events and is_boundary and (not self._tail or self._tail.endswith(_EVENT_ENDS))

    def _is_one_small_answer(self, data: bytes) -> bool:
        """Whether these bytes are a plain answer, and nothing else, so that nothing changes but the credit."""
        end = data.find(_HEAD_END)
        if not 0 < end < MAX_HEAD_BYTES:
            return False
        num_bytes = end + len(_HEAD_END)
        if _length_of_small(data[:end]) != len(data) - num_bytes:
            return False
        self._credit = min(MAX_CREDIT, self._credit + num_bytes - _LINE_COST)
        return True

    def _give_up(self) -> None:
        self._at, self._is_events, self._left, self._tail = _At.UNKNOWN, False, 0, b""
        self._buffer.clear()

    def _feed_head(self, data: bytes, position: int) -> int:
        head, position = self._take_until(_HEAD_END, data, position, MAX_HEAD_BYTES)
        if head is not None:
            self._begin_body(head)
        return position

    def _begin_body(self, head: bytes) -> None:
        """Raises ValueError."""
        first, *lines = head.split(_LINE_END)
        if (answer := _FIRST_LINE.fullmatch(first)) is None:
            raise ValueError("not an answer of HTTP/1")
        status = int(answer[1])
        headers: dict[bytes, set[bytes]] = {}
        for name, _, value in (line.partition(b":") for line in lines):
            headers.setdefault(name.strip(_BLANKS).lower(), set()).add(value.strip(_BLANKS).lower())
        encodings, lengths = headers.get(b"transfer-encoding", set()), headers.get(b"content-length", set())
        if status == _SWITCHING or len(encodings) + len(lengths) > 1:
            self._give_up()
        elif status < _FIRST_FINAL or status in _WITHOUT_BODY:
            self._at = _At.HEAD
        elif encodings == {b"chunked"}:
            is_plain = headers.get(b"content-encoding", {b"identity"}) == {b"identity"}
            types = headers.get(b"content-type", set())
            self._is_events = is_plain and len(types) == 1 and min(types).startswith(b"text/event-stream")
            self._at, self._tail = _At.SIZE, b""
        elif lengths:
            self._left = _number(_LENGTH, min(lengths), 10)
            self._at = _At.BODY if self._left else _At.HEAD
        else:
            self._give_up()

    def _feed_size(self, data: bytes, position: int) -> int:
        line, position = self._take_until(_LINE_END, data, position, MAX_LINE_BYTES)
        if line is not None:
            self._left = _number(_CHUNK_SIZE, line.partition(b";")[0], 16)
            self._credit = min(MAX_CREDIT, self._credit + self._left)
            self._at = _At.CHUNK if self._left else _At.TRAILER
        return position

    def _feed_chunk(self, data: bytes, position: int) -> int:
        end = position + min(self._left, len(data) - position)
        if self._is_events:
            self._tail = (self._tail + data[max(position, end - 4) : end])[-4:]
        self._left -= end - position
        if not self._left:
            self._at, self._left = _At.CHUNK_END, len(_LINE_END)
        return end

    def _feed_chunk_end(self, data: bytes, position: int) -> int:
        if data[position : position + self._left] != _LINE_END[-self._left :][: len(data) - position]:
            raise ValueError("a chunk has another length")
        return self._skip(data, position, _At.SIZE)

    def _feed_body(self, data: bytes, position: int) -> int:
        return self._skip(data, position, _At.HEAD)

    def _feed_trailer(self, data: bytes, position: int) -> int:
        line, position = self._take_until(_LINE_END, data, position, MAX_HEAD_BYTES)
        if line == b"":
            self._at, self._is_events = _At.HEAD, False
        return position

    def _skip(self, data: bytes, position: int, then: _At) -> int:
        end = position + min(self._left, len(data) - position)
        self._left -= end - position
        if not self._left:
            self._at = then
        return end

    def _take_until(self, mark: bytes, data: bytes, position: int, max_bytes: int) -> tuple[bytes | None, int]:
        """What precedes `mark`, and the position after it; None if `mark` has not come yet. Raises ValueError."""
        before, end_by = len(self._buffer), max_bytes + len(mark)
        if before:
            self._buffer += data[position : position + end_by]
            end = self._buffer.find(mark, max(0, before - len(mark) + 1), end_by)
        else:  # nothing is copied, so that the bytes of many lines are not copied for each of them
            end = max(-1, data.find(mark, position, position + end_by) - position)
        if end < 0:
            if before + len(data) - position >= end_by:
                raise ValueError("it is too long")
            if not before:
                self._buffer += data[position:]
            return None, len(data)
        taken = bytes(self._buffer[:end]) if before else data[position : position + end]
        self._buffer.clear()
        num_bytes = end + len(mark)
        self._credit = min(MAX_CREDIT, self._credit + num_bytes - _LINE_COST)
        if self._credit < 0:
            raise ValueError("its pieces are too small")
        return taken, position + num_bytes - before


def _length_of_small(head: bytes) -> int | None:
    """The length of the body of a plain answer, of which there are thousands a second; None of any other answer."""
    lowered = head.lower()
    if lowered.count(b"content-length") != 1 or b"transfer-encoding" in lowered:
        return None
    status, length = _PLAIN_STATUS.match(head), _PLAIN_LENGTH.search(lowered)
    return int(length[1]) if status is not None and length is not None else None


def _number(digits: re.Pattern[bytes], text: bytes, base: int) -> int:
    """The length that `text` is. Raises ValueError: `int` alone takes signs, blanks and underscores."""
    if not digits.fullmatch(text):
        raise ValueError("not a length")
    return int(text, base)


_STEPS: Mapping[_At, Callable[[AnswerFraming, bytes, int], int]] = {
    _At.HEAD: AnswerFraming._feed_head,
    _At.SIZE: AnswerFraming._feed_size,
    _At.CHUNK: AnswerFraming._feed_chunk,
    _At.CHUNK_END: AnswerFraming._feed_chunk_end,
    _At.TRAILER: AnswerFraming._feed_trailer,
    _At.BODY: AnswerFraming._feed_body,
}


def error_event(message: str, kind: str) -> bytes:
    """A chunk with an event that clients of models take for an error."""
    event = f"event: error\ndata: {json.dumps({'error': {'message': message, 'type': kind}})}\n\n".encode()
    return b"%x\r\n%s\r\n" % (len(event), event)
