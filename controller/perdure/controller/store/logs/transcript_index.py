"""Where the lines of a transcript are, so that any part of a long one can be shown without reading what is before it.

An index is built by reading the transcript once, and continued as the transcript grows. It keeps no text: a block says
which bytes of which node's log it is rendered from. One GiB of one node's output takes 4096 blocks of some hundred
bytes each.
"""

from __future__ import annotations

import errno
import threading
from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from time import monotonic

from perdure.controller.runtime.keys import AttemptKey
from perdure.controller.store.logs.job_transcript import JobTranscript
from perdure.controller.store.logs.protocol import LogStore
from perdure.controller.store.logs.transcript import TranscriptPart, render

BLOCK_BYTES = 2**18
MAX_LINE_BYTES = 16_384
"""A longer line is cut where lines are shown."""
STEP_S = 0.5
_SOURCE_NUMBERS = 3  # the rank, the offset, the length
_MAX_INDEXES, _MAX_INDEX_BYTES = 32, 64 * 2**20


@dataclass
class _Run:
    """Consecutive pieces of the output of an attempt, as rank, offset and length."""

    key: AttemptKey
    with_rank: bool
    pieces: array[int]

    def append(self, rank: int, offset: int, length: int) -> None:
        if self.pieces:
            last_rank, last_offset, last_length = self.pieces[-_SOURCE_NUMBERS:]
            if last_rank == rank and last_offset + last_length == offset:
                self.pieces[-1] += length
                return
        self.pieces.extend((rank, offset, length))

    def text(self, logs: LogStore) -> Iterator[bytes]:
        for at in range(0, len(self.pieces), _SOURCE_NUMBERS):
            rank, offset, length = self.pieces[at : at + _SOURCE_NUMBERS]
            yield render(logs.read_range(self.key, rank, offset, length), rank, with_rank=self.with_rank)

    def copy(self) -> _Run:
        return _Run(self.key, self.with_rank, self.pieces[:])


@dataclass
class Block:
    """Some of the transcript's bytes, from byte `start` on. `line`: how many lines end before it."""

    start: int
    line: int
    size: int = 0
    newlines: int = 0
    begins_line: bool = True
    ends_line: bool = True
    parts: list[bytes | _Run] = field(default_factory=list)

    @property
    def end(self) -> int:
        return self.start + self.size

    def append(self, part: TranscriptPart) -> None:
        data, chunk, attempt = part.data, part.chunk, part.attempt
        self.size += len(data)
        self.newlines += data.count(b"\n")
        self.ends_line = data.endswith(b"\n")
        if chunk is None:
            self.parts.append(data)
            return
        last, with_rank = self.parts[-1] if self.parts else None, attempt.num_nodes > 1
        if not isinstance(last, _Run) or last.key != attempt.key or last.with_rank != with_rank:
            last = _Run(attempt.key, with_rank, array("Q"))
            self.parts.append(last)
        last.append(chunk.rank, chunk.offset, chunk.length)

    def text(self, logs: LogStore) -> bytes:
        parts = [[part] if isinstance(part, bytes) else part.text(logs) for part in self.parts]
        return b"".join(piece for part in parts for piece in part)

    def copy(self) -> Block:
        parts = [part if isinstance(part, bytes) else part.copy() for part in self.parts]
        return Block(self.start, self.line, self.size, self.newlines, self.begins_line, self.ends_line, parts)

    @property
    def memory_bytes(self) -> int:
        """About what the block takes."""
        return 200 + sum(200 + (len(part) if isinstance(part, bytes) else 8 * len(part.pieces)) for part in self.parts)


@dataclass(frozen=True)
class AttemptLine:
    """The line, counted from 0, that is the headline of an attempt."""

    task_index: int
    generation: int
    line: int


@dataclass(frozen=True)
class TranscriptView:
    """A transcript as it was at a moment. Methods read the logs, so they need a worker thread; they raise
    FileNotFoundError once the log was deleted. Lines are counted from 0."""

    blocks: Sequence[Block]
    attempts: Sequence[AttemptLine]
    is_final: bool
    _logs: LogStore

    @property
    def size(self) -> int:
        return self.blocks[-1].end if self.blocks else 0

    @property
    def num_lines(self) -> int:
        if not self.blocks:
            return 0
        last = self.blocks[-1]
        return last.line + last.newlines + (0 if last.ends_line else 1)

    def require_stored(self) -> None:
        """Raises FileNotFoundError if the log was deleted."""
        runs = (part for block in reversed(self.blocks) for part in reversed(block.parts) if isinstance(part, _Run))
        if (last := next(runs, None)) is not None:
            rank, offset, length = last.pieces[-_SOURCE_NUMBERS:]
            if self._logs.size(last.key, rank) < offset + length:
                raise FileNotFoundError(errno.ENOENT, f"the log of attempt {last.key} was deleted")

    def text_of(self, block: Block) -> bytes:
        return block.text(self._logs)

    def pieces(self, start: int, end: int) -> Iterator[bytes]:
        """The bytes from `start` to `end`."""
        for block in self.blocks[self._number_of_block(start) :]:
            if block.start >= end:
                return
            if data := self.text_of(block)[max(0, start - block.start) : end - block.start]:
                yield data

    def offset_of(self, line: int) -> int:
        """The byte at which a line begins; the end of the transcript if it has no such line."""
        if line <= 0:
            return 0
        at = bisect_left(self.blocks, line, key=lambda block: block.line) - 1
        block = self.blocks[at] if self.blocks else None
        if block is None or block.line + block.newlines < line:
            return self.size
        data, position = self.text_of(block), 0
        for _ in range(line - block.line):
            position = data.index(b"\n", position) + 1
        return block.start + position

    def start_of_tail(self, count: int) -> int:
        """The offset of the last `count` lines."""
        return self.offset_of(self.num_lines - count)

    def lines(self, first: int, count: int) -> list[bytes]:
        """Some lines, without their ends. A line that is longer than `MAX_LINE_BYTES` is cut; what is cut is not read,
        but for the end of the line."""
        start, end = self.offset_of(first), self.offset_of(first + count)
        shown: list[bytes] = []
        line = _Line()
        for block in self.blocks[self._number_of_block(start) :]:
            if block.start >= end:
                break
            if line.is_full and not block.newlines:
                line.size += min(end, block.end) - block.start
                continue
            data = self.text_of(block)[max(0, start - block.start) : end - block.start]
            *complete, rest = data.split(b"\n")
            for text in complete:
                line.add(text)
                shown.append(line.shown())
                line = _Line()
            line.add(rest)
        return [*shown, line.shown()] if line.size else shown

    def _number_of_block(self, offset: int) -> int:
        """Which block has the byte."""
        return max(0, bisect_right(self.blocks, offset, key=lambda block: block.start) - 1)


@dataclass
class _Line:
    """A line, of which no more is kept than is shown."""

    text: bytes = b""
    size: int = 0

    @property
    def is_full(self) -> bool:
        return len(self.text) == MAX_LINE_BYTES

    def add(self, text: bytes) -> None:
        self.text += text[: MAX_LINE_BYTES - len(self.text)]
        self.size += len(text)

    def shown(self) -> bytes:
        cut = self.size - len(self.text)
        return self.text + b" [... and %d more bytes]" % cut if cut else self.text


class TranscriptIndex:
    """The index of one transcript, from which nothing was read yet. Safe to use from any thread."""

    def __init__(self, logs: LogStore, transcript: JobTranscript) -> None:
        self._logs = logs
        self._unread = transcript
        self._lock = threading.Lock()
        self._reset()

    def _reset(self) -> None:
        self._transcript, self._is_final = self._unread.copy(), False
        self._parts: Iterator[TranscriptPart] | None = None  # that are still to be read
        self._blocks: list[Block] = []
        self._attempts: list[AttemptLine] = []
        self.memory_bytes = 0  # about, without the last block

    @property
    def is_empty(self) -> bool:
        """Whether nothing was read yet."""
        return not self._blocks

    @property
    def is_reading(self) -> bool:
        """Whether `read_step` has begun a reading that it has not finished."""
        return self._parts is not None

    def view(self) -> TranscriptView:
        """The transcript as it is now. Raises what the database raises."""
        while (read := self.read_step()) is None:
            pass
        return read[0]

    def read_step(
        self, budget_s: float = STEP_S, timer: Callable[[], float] = monotonic
    ) -> tuple[TranscriptView, JobTranscript] | None:
        """Read what is new, for about `budget_s`. None if there is more: then call again.

        Returns the transcript as it was when this reading began, and one that continues after it. Raises what the
        database and the logs raise; the next call then reads everything again, since the transcript has moved past
        what could not be read.
        """
        give_up_at = timer() + budget_s
        with self._lock:
            try:
                if self._parts is None:
                    self._is_final = self._transcript.refresh()
                    self._parts = self._transcript.new_parts()
                for part in self._parts:
                    self._append(part)
                    if timer() >= give_up_at:
                        return None
            except BaseException:
                self._reset()
                raise
            self._parts = None
            blocks = [*self._blocks[:-1], *(block.copy() for block in self._blocks[-1:])]
            view = TranscriptView(blocks, list(self._attempts), self._is_final, self._logs)
            return view, self._transcript.copy()

    def _append(self, part: TranscriptPart) -> None:
        last = self._blocks[-1] if self._blocks else Block(0, 0)
        if not self._blocks or last.size >= BLOCK_BYTES:
            self.memory_bytes += last.memory_bytes
            last = Block(last.end, last.line + last.newlines, begins_line=last.ends_line)
            self._blocks.append(last)
        if part.begins_attempt:
            _, task_index, generation = part.attempt.key
            ended_here = int(part.data.startswith(b"\n"))
            self._attempts.append(AttemptLine(task_index, generation, last.line + last.newlines + ended_here))
        last.append(part)


class TranscriptIndexes:
    """The indexes that were used last. Not safe to use from several threads."""

    def __init__(self, max_indexes: int = _MAX_INDEXES, max_bytes: int = _MAX_INDEX_BYTES) -> None:
        self._max_indexes, self._max_bytes = max_indexes, max_bytes
        self._indexes: OrderedDict[Hashable, TranscriptIndex] = OrderedDict()

    def get(self, key: Hashable) -> TranscriptIndex | None:
        """The index that was kept of a transcript."""
        return self._indexes.get(key)

    def keep(self, key: Hashable, index: TranscriptIndex) -> None:
        """Keep an index that was used now, unless it is empty. Others that were not used for longest are dropped when
        all become too many or too large."""
        self.forget(key)
        if index.is_empty:
            return
        self._indexes[key] = index
        total = 0
        for number, (other, old) in enumerate(list(reversed(self._indexes.items()))[1:], start=1):
            total += old.memory_bytes
            if number >= self._max_indexes or total > self._max_bytes:
                self.forget(other)

    def forget(self, key: Hashable) -> None:
        """Drop an index: the log was deleted."""
        self._indexes.pop(key, None)
