"""Follows the HTTP/1.1 answers of a connection, to know where a stream of events may be interrupted by one more event.

A replica that is lost ends its streams anywhere. Where the last event was whole, callers can be told so in the stream.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from enum import Enum, auto

MAX_HEAD_BYTES, MAX_LINE_BYTES = 64 * 1024, 1024
_HEAD_END, _LINE_END = b"\r\n\r\n", b"\r\n"
_EVENT_ENDS = (b"\n\n", b"\r\n\r\n", b"\r\r")
_SWITCHING, _FIRST_FINAL = 101, 200
_WITHOUT_BODY = (204, 304)


class _At(Enum):
    HEAD = auto()
    SIZE = auto()  # the line before a chunk
    CHUNK = auto()
    CHUNK_END = auto()
    TRAILER = auto()
    BODY = auto()  # of a known length
    UNKNOWN = auto()  # nothing is followed any more


class AnswerFraming:
    """The place in the answers of one connection. What it cannot follow, such as a WebSocket, it lets be."""

    __slots__ = ("_at", "_buffer", "_is_events", "_left", "_tail")

    def __init__(self) -> None:
        self._at = _At.HEAD
        self._buffer = bytearray()  # of a head or a line that is not whole yet
        self._left = 0  # bytes of a chunk or of a body
        self._is_events = False
        self._tail = b""  # the last bytes of the events

    def feed(self, data: bytes) -> None:
        """The next bytes of the replica."""
        position = 0
        while position < len(data) and self._at is not _At.UNKNOWN:
            try:
                position = _STEPS[self._at](self, data, position)
            except (ValueError, IndexError):
                self._at = _At.UNKNOWN

    @property
    def is_between_events(self) -> bool:
        """Whether an answer is a stream of events, has not ended, and one more event may follow now."""
        is_boundary = self._at is _At.SIZE and not self._buffer
        return self._is_events and is_boundary and (not self._tail or self._tail.endswith(_EVENT_ENDS))

    def _feed_head(self, data: bytes, position: int) -> int:
        head, position = self._take_until(_HEAD_END, data, position, MAX_HEAD_BYTES)
        if head is not None:
            self._begin_body(head)
        return position

    def _begin_body(self, head: bytes) -> None:
        first, *lines = head.split(_LINE_END)
        status = int(first.split(b" ", 2)[1])
        headers = {name.strip().lower(): value.strip().lower() for name, _, value in (x.partition(b":") for x in lines)}
        if status == _SWITCHING:
            self._at = _At.UNKNOWN
        elif status < _FIRST_FINAL or status in _WITHOUT_BODY:
            self._at = _At.HEAD
        elif headers.get(b"transfer-encoding") == b"chunked":
            is_plain = headers.get(b"content-encoding", b"identity") == b"identity"
            self._is_events = is_plain and headers.get(b"content-type", b"").startswith(b"text/event-stream")
            self._at, self._tail = _At.SIZE, b""
        elif b"content-length" in headers:
            self._left = int(headers[b"content-length"])
            self._at = _At.BODY if self._left else _At.HEAD
        else:
            self._at = _At.UNKNOWN

    def _feed_size(self, data: bytes, position: int) -> int:
        line, position = self._take_until(_LINE_END, data, position, MAX_LINE_BYTES)
        if line is not None:
            self._left = int(line.partition(b";")[0], 16)
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
        before = len(self._buffer)
        self._buffer += data[position:]
        end = self._buffer.find(mark, max(0, before - len(mark) + 1))
        if end < 0:
            if len(self._buffer) > max_bytes:
                raise ValueError("it is too long")
            return None, len(data)
        taken = bytes(self._buffer[:end])
        self._buffer.clear()
        return taken, position + end + len(mark) - before


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
