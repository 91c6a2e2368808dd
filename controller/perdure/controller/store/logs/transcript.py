"""A job's log as users read it: all attempts in order under headlines, with the ranks marked.

The bytes are the same at every reading, because they derive only from recorded data: so a reader that was cut off can
continue at the byte where it stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from perdure.controller.runtime.keys import AttemptKey
from perdure.controller.store.logs.protocol import Chunk, ChunkReader, LogStore

MAX_RANK_LINE_BYTES = 2**20
"""After so many bytes a line of one of several ranks is ended, so that it need not be kept until it ends."""
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


@dataclass(frozen=True)
class TranscriptPart:
    """Bytes of the transcript and where they come from, so that they need not be kept.

    `chunk`: they are rendered from these bytes of a node's log (`render`); None: they are a line of the transcript's
    own. `begins_attempt`: the line is an attempt's headline.
    """

    data: bytes
    attempt: AttemptInfo
    chunk: Chunk | None = None
    begins_attempt: bool = False


def render(raw: bytes, rank: int, *, with_rank: bool) -> bytes:
    """What the transcript shows of a node's output. `with_rank`: `raw` is what `_complete_length` counts, or the last
    line of a log."""
    if not with_rank:
        return raw
    name = b"(rank %d) " % rank
    lines = b"\n".join(piece.removesuffix(b"\n") for piece in _split_long_lines(raw))
    return name + lines.replace(b"\n", b"\n" + name) + b"\n"


def _split_long_lines(raw: bytes) -> Iterator[bytes]:
    """`raw`, which begins a line, in pieces that are complete lines, or a part of a line that is too long."""
    start = 0
    while len(raw) - start > MAX_RANK_LINE_BYTES:
        end = raw.rfind(b"\n", start, start + MAX_RANK_LINE_BYTES + 1) + 1 or start + MAX_RANK_LINE_BYTES
        yield raw[start:end]
        start = end
    if start < len(raw):
        yield raw[start:]


def _complete_length(raw: bytes) -> int:
    """How many bytes of `raw`, which begins a line, are complete lines and parts of a line that is too long."""
    start_of_last = raw.rfind(b"\n") + 1
    parts = max(0, len(raw) - start_of_last - 1) // MAX_RANK_LINE_BYTES
    return start_of_last + parts * MAX_RANK_LINE_BYTES


class Transcript:
    """Renders the attempts of `list_attempts` in order. Each `read_new` calls `list_attempts` again."""

    def __init__(self, logs: LogStore, list_attempts: Callable[[], list[AttemptInfo]]) -> None:
        self._logs = logs
        self._list = list_attempts
        self._index = 0
        self._current: AttemptInfo | None = None
        self._reader: ChunkReader | None = None
        self._waiting: dict[int, Chunk] = {}  # the incomplete line of each rank
        self._ends_line = True

    def copy(self, list_attempts: Callable[[], list[AttemptInfo]]) -> Transcript:
        """Another one, which continues where this one stands."""
        other = Transcript(self._logs, list_attempts)
        other._index, other._current, other._ends_line = self._index, self._current, self._ends_line
        other._reader, other._waiting = self._reader and self._reader.copy(), dict(self._waiting)
        return other

    def read_new(self) -> Iterator[bytes]:
        """Yield the bytes that are new since the last call. Goes on to the next attempt when one has ended."""
        return _joined(self.new_parts())

    def read_current(self) -> Iterator[bytes]:
        """Yield only the new output of the attempt at which `read_new` stopped, without listing the attempts."""
        if self._current is not None and self._reader is not None:
            yield from _joined(self._new_output(self._current, self._reader))

    @property
    def has_buffered(self) -> bool:
        """Whether `read_current` has output in memory: then it may be called on the event loop."""
        is_in_memory = all(begun.data is not None for begun in self._waiting.values())
        return is_in_memory and self._reader is not None and self._reader.has_buffered

    def new_parts(self) -> Iterator[TranscriptPart]:
        """What `read_new` yields, in parts whose origins are known."""
        while True:
            attempts = self._list()
            if self._index >= len(attempts):
                return
            attempt = attempts[self._index]
            self._current = attempt
            if self._reader is None:
                self._reader = self._logs.reader(attempt.key)
                yield self._own_line(attempt, _headline(attempt), begins_attempt=True)
            yield from self._new_output(attempt, self._reader)
            if not attempt.has_ended:
                return
            yield from self._close(attempt)

    def _new_output(self, attempt: AttemptInfo, reader: ChunkReader) -> Iterator[TranscriptPart]:
        for chunk in reader.read_new():
            data = chunk.data if chunk.data is not None else self._logs.read_chunk(attempt.key, chunk)
            part = self._complete_lines(attempt, chunk, data) if attempt.num_nodes > 1 else None
            if attempt.num_nodes == 1:
                part = TranscriptPart(data, attempt, Chunk(chunk.rank, chunk.offset, len(data)))
            if part is not None and part.data:
                self._ends_line = part.data.endswith(b"\n")
                yield part

    def _complete_lines(self, attempt: AttemptInfo, chunk: Chunk, data: bytes) -> TranscriptPart | None:
        """The complete lines of a chunk, each prefixed with its rank. An incomplete line waits for its end, unless it
        is too long. Whether it is depends on its bytes alone, not on how they were received."""
        before = self._waiting.pop(chunk.rank, Chunk(chunk.rank, chunk.offset, 0, b""))
        if b"\n" not in data and before.length + len(data) <= MAX_RANK_LINE_BYTES:
            self._wait(before, data)
            return None
        whole = self._read(attempt, before) + data
        length = _complete_length(whole)
        if length < len(whole):
            self._wait(Chunk(chunk.rank, before.offset + length, 0, b""), whole[length:])
        lines = render(whole[:length], chunk.rank, with_rank=True)
        return TranscriptPart(lines, attempt, Chunk(chunk.rank, before.offset, length))

    def _wait(self, begun: Chunk, data: bytes) -> None:
        """Add `data` to the incomplete line of a rank. It is kept in memory unless it becomes long."""
        length = begun.length + len(data)
        kept = None if begun.data is None or length > _PIECE_BYTES else begun.data + data
        self._waiting[begun.rank] = Chunk(begun.rank, begun.offset, length, kept)

    def _read(self, attempt: AttemptInfo, chunk: Chunk) -> bytes:
        if chunk.data is not None:
            return chunk.data
        return self._logs.read_range(attempt.key, chunk.rank, chunk.offset, chunk.length)

    def _close(self, attempt: AttemptInfo) -> Iterator[TranscriptPart]:
        for rank, rest in sorted(self._waiting.items()):
            yield TranscriptPart(render(self._read(attempt, rest), rank, with_rank=True), attempt, rest)
        if attempt.refusal:
            yield self._own_line(attempt, f"--- attempt {attempt.key[2]} refused: {attempt.refusal} ---\n")
        elif attempt.reason:
            yield self._own_line(attempt, f"--- attempt {attempt.key[2]} ended: {attempt.reason} ---\n")
        self._index, self._reader, self._waiting = self._index + 1, None, {}

    def _own_line(self, attempt: AttemptInfo, text: str, *, begins_attempt: bool = False) -> TranscriptPart:
        before = b"" if self._ends_line else b"\n"
        self._ends_line = True
        return TranscriptPart(before + text.encode(), attempt, begins_attempt=begins_attempt)


def _joined(parts: Iterable[TranscriptPart]) -> Iterator[bytes]:
    """The bytes in pieces of some size: each costs the caller a switch between threads."""
    piece = bytearray()
    for part in parts:
        piece += part.data
        if len(piece) >= _PIECE_BYTES:
            yield bytes(piece)
            piece.clear()
    if piece:
        yield bytes(piece)


def _headline(attempt: AttemptInfo) -> str:
    task = f" of task {attempt.task_name}" if attempt.task_name else ""
    return f"--- attempt {attempt.key[2]}{task} on {attempt.where}, requested {attempt.requested_at} ---\n"
