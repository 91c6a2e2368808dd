"""A job's log as users read it: every attempt in order, marked, ranks told apart, and the same bytes at every reading.

A reader that was cut off goes on at the byte where it stopped. So everything here is derived from what is recorded.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from perdure.controller.keyring import AttemptKey
from perdure.controller.nodelogs import ChunkReader, Logs


@dataclass(frozen=True)
class AttemptInfo:
    """What the transcript has to know of an attempt. `is_over`: none of its nodes will log any more.

    `requested_at` is ISO 8601 UTC.
    """

    key: AttemptKey
    num_nodes: int
    requested_at: str
    where: str
    task_name: str
    is_over: bool
    reason: str | None


class Transcript:
    """Renders the attempts that `list_attempts` names, in order. `list_attempts` is asked again at every `more`."""

    def __init__(self, logs: Logs, list_attempts: Callable[[], list[AttemptInfo]]) -> None:
        self._logs = logs
        self._list = list_attempts
        self._at = 0
        self._current: AttemptInfo | None = None
        self._reader: ChunkReader | None = None
        self._partial: dict[int, bytes] = {}
        self._ends_line = True

    def more(self) -> Iterator[bytes]:
        """What has come since the last call. Goes on to the next attempt only when one is over."""
        while True:
            attempts = self._list()
            if self._at >= len(attempts):
                return
            attempt = attempts[self._at]
            self._current = attempt
            if self._reader is None:
                self._reader = self._logs.reader(attempt.key)
                yield self._own_line(_headline(attempt))
            yield from self._new_bytes(attempt, self._reader)
            if not attempt.is_over:
                return
            yield from self._close(attempt)

    def printed(self) -> Iterator[bytes]:
        """What the attempt at which `more` stopped has printed since: of `more`, what takes no look at the attempts."""
        if self._current is not None and self._reader is not None:
            yield from self._new_bytes(self._current, self._reader)

    @property
    def is_at_hand(self) -> bool:
        """Whether `printed` has something to tell, and asks nobody for it: then it can be called on the event loop."""
        return self._reader is not None and self._reader.is_at_hand

    def _new_bytes(self, attempt: AttemptInfo, reader: ChunkReader) -> Iterator[bytes]:
        for chunk in reader.new():
            data = chunk.data if chunk.data is not None else self._logs.read(attempt.key, chunk)
            if attempt.num_nodes > 1:
                data = self._prefixed(chunk.rank, data)
            if data:
                self._ends_line = data.endswith(b"\n")
                yield data

    def _prefixed(self, rank: int, data: bytes) -> bytes:
        """Whole lines of `data`, each named after its rank; what begins a line waits for its end."""
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
        if attempt.reason:
            yield self._own_line(f"--- attempt {attempt.key[2]} ended: {attempt.reason} ---\n")
        self._at, self._reader, self._partial = self._at + 1, None, {}

    def _own_line(self, text: str) -> bytes:
        before = b"" if self._ends_line else b"\n"
        self._ends_line = True
        return before + text.encode()


def _headline(attempt: AttemptInfo) -> str:
    task = f" of task {attempt.task_name}" if attempt.task_name else ""
    return f"--- attempt {attempt.key[2]}{task} on {attempt.where}, requested {attempt.requested_at} ---\n"


def start_of_tail(pieces: Iterable[bytes], count: int) -> int:
    """The offset at which the last `count` lines of `pieces`, taken as one text, begin."""
    starts: deque[int] = deque([0], maxlen=count + 1)
    size = 0
    for data in pieces:
        at = data.find(b"\n")
        while at >= 0:
            starts.append(size + at + 1)
            at = data.find(b"\n", at + 1)
        size += len(data)
    if starts[-1] == size:
        starts.pop()  # nothing follows the last newline: no line begins there
    return list(starts)[-count:][0] if starts else 0
