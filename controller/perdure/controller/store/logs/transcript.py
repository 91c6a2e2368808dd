"""A job's log as users read it: all attempts in order under headlines, with the ranks marked.

The bytes are the same at every reading, because they derive only from recorded data: so a reader that was cut off can
continue at the byte where it stopped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from perdure.controller.runtime.keys import AttemptKey
from perdure.controller.store.logs.protocol import ChunkReader, LogStore

_PIECE_BYTES = 2**16


@dataclass(frozen=True)
class AttemptInfo:
    """The facts about an attempt that its headlines show."""

    key: AttemptKey
    num_nodes: int
    requested_at: str  # ISO 8601, UTC
    where: str
    task_name: str
    has_ended: bool  # none of its nodes will log any more
    reason: str | None
    refusal: str | None = None  # the cloud's error code, if it refused to launch the attempt


class Transcript:
    """Renders the attempts of `list_attempts` in order. Each `read_new` calls `list_attempts` again."""

    def __init__(self, logs: LogStore, list_attempts: Callable[[], list[AttemptInfo]]) -> None:
        self._logs = logs
        self._list = list_attempts
        self._index = 0
        self._current: AttemptInfo | None = None
        self._reader: ChunkReader | None = None
        self._partial: dict[int, bytes] = {}
        self._ends_line = True

    def read_new(self) -> Iterator[bytes]:
        """Yield the bytes that are new since the last call. Goes on to the next attempt when one has ended."""
        while True:
            attempts = self._list()
            if self._index >= len(attempts):
                return
            attempt = attempts[self._index]
            self._current = attempt
            if self._reader is None:
                self._reader = self._logs.reader(attempt.key)
                yield self._marker_line(_headline(attempt))
            yield from self._new_bytes(attempt, self._reader)
            if not attempt.has_ended:
                return
            yield from self._close(attempt)

    def read_current(self) -> Iterator[bytes]:
        """Yield only the new output of the attempt at which `read_new` stopped, without listing the attempts."""
        if self._current is not None and self._reader is not None:
            yield from self._new_bytes(self._current, self._reader)

    @property
    def has_buffered(self) -> bool:
        """Whether `read_current` has output in memory: then it may be called on the event loop."""
        return self._reader is not None and self._reader.has_buffered

    def _new_bytes(self, attempt: AttemptInfo, reader: ChunkReader) -> Iterator[bytes]:
        """In pieces of some size: each costs the caller a switch between threads."""
        piece = bytearray()
        for chunk in reader.read_new():
            data = chunk.data if chunk.data is not None else self._logs.read_chunk(attempt.key, chunk)
            if attempt.num_nodes > 1:
                data = self._prefixed(chunk.rank, data)
            if data:
                self._ends_line = data.endswith(b"\n")
                piece += data
            if len(piece) >= _PIECE_BYTES:
                yield bytes(piece)
                piece.clear()
        if piece:
            yield bytes(piece)

    def _prefixed(self, rank: int, data: bytes) -> bytes:
        """The complete lines of `data`, each prefixed with its rank. An incomplete line waits for its end."""
        data = self._partial.pop(rank, b"") + data
        whole, newline, rest = data.rpartition(b"\n")
        if rest:
            self._partial[rank] = rest
        if not newline:
            return b""
        name = b"(rank %d) " % rank
        return name + whole.replace(b"\n", b"\n" + name) + b"\n"

    def _close(self, attempt: AttemptInfo) -> Iterator[bytes]:
        for rank, rest in sorted(self._partial.items()):
            yield b"(rank %d) " % rank + rest + b"\n"
        if attempt.refusal:
            yield self._marker_line(f"--- attempt {attempt.key[2]} refused: {attempt.refusal} ---\n")
        elif attempt.reason:
            yield self._marker_line(f"--- attempt {attempt.key[2]} ended: {attempt.reason} ---\n")
        self._index, self._reader, self._partial = self._index + 1, None, {}

    def _marker_line(self, text: str) -> bytes:
        before = b"" if self._ends_line else b"\n"
        self._ends_line = True
        return before + text.encode()


def _headline(attempt: AttemptInfo) -> str:
    task = f" of task {attempt.task_name}" if attempt.task_name else ""
    return f"--- attempt {attempt.key[2]}{task} on {attempt.where}, requested {attempt.requested_at} ---\n"


def start_of_tail(pieces: Iterable[bytes], count: int) -> int:
    """The offset of the last `count` lines of the text that `pieces` make up."""
    starts: deque[int] = deque([0], maxlen=count + 1)
    size = 0
    for data in pieces:
        at = data.find(b"\n")
        while at >= 0:
            starts.append(size + at + 1)
            at = data.find(b"\n", at + 1)
        size += len(data)
    if starts[-1] == size:
        starts.pop()  # no line begins after a final newline
    return list(starts)[-count:][0] if starts else 0
