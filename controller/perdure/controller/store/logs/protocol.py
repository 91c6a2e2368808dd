"""The interface of a log store. `file_logs` and `sql_logs` implement it, and `open_logs` chooses one of them."""

from __future__ import annotations

import errno
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from perdure.controller.runtime.keys import AttemptKey

LogWrite = tuple[AttemptKey, int, int, bytes]
"""The arguments of `LogStore.append`."""


@dataclass(frozen=True)
class Chunk:
    """`length` bytes of the log of `rank`, from `offset`. `data`: these bytes, if the reader has them in memory."""

    rank: int
    offset: int
    length: int
    data: bytes | None = field(default=None, compare=False, repr=False)


class ChunkReader(Protocol):
    """Reads an attempt's log, and continues where it stopped."""

    @property
    def has_buffered(self) -> bool:
        """Whether `read_new` would return chunks with data now without reading a disk or a database."""
        ...

    def read_new(self) -> list[Chunk]:
        """The chunks received since the last call, in the order in which they were received."""
        ...

    def copy(self) -> ChunkReader:
        """Another reader, which continues where this one stands."""
        ...


class LogStore(Protocol):
    """The logs of all nodes. Every method may be called from any thread at any time."""

    #: How long a caller should wait for more data between two writes while there is little to write.
    linger_s: float
    #: How many small writes of a node are worth storing in a second; None: any number.
    small_writes_per_s: float | None
    #: At most so many bytes does a write take beside its data: in an index, or as a row.
    write_overhead: int

    def size(self, key: AttemptKey, rank: int) -> int:
        """Bytes stored of a node's log: the offset from which the node should continue."""
        ...

    def prepare(self, places: Sequence[tuple[AttemptKey, int]]) -> None:
        """Make ready for the first lines of these nodes, soon and without waiting: so that they are stored sooner."""
        ...

    def append(self, key: AttemptKey, rank: int, offset: int, data: bytes) -> int:
        """Store `data`, which begins at `offset` of the node's log. Returns how many bytes of the log are stored now.

        Bytes that are stored already are skipped. Data beyond a gap is not stored: the node sends it again from the
        returned offset. Raises OSError if the data cannot be written, for example to a full disk; then none of it is.
        """
        ...

    def append_all(self, writes: Sequence[LogWrite]) -> Sequence[int | Exception]:
        """`append` for several writes in this order. The result of a write that fails alone is its exception; an
        error that concerns all of them is raised."""
        ...

    def sizes(self, places: Sequence[tuple[AttemptKey, int]]) -> list[int]:
        """`size` for several nodes."""
        ...

    def overhead(self, key: AttemptKey, rank: int) -> int:
        """About how many bytes a node's log takes beside its data. The nodes of an attempt share equally."""
        ...

    def reader(self, key: AttemptKey) -> ChunkReader: ...

    def read_chunk(self, key: AttemptKey, chunk: Chunk) -> bytes:
        """The bytes of a chunk that a reader has returned: fewer if a power failure has lost some that were listed.
        Raises FileNotFoundError if the log was deleted."""
        ...

    def read_range(self, key: AttemptKey, rank: int, offset: int, length: int) -> bytes:
        """Any bytes of a node's log that are stored. Raises FileNotFoundError if any of them were deleted."""
        ...

    def remove(self, job_id: int) -> bool:
        """Delete some of the logs of a finalized job. True if there may be more: then call again."""
        ...


def require_whole(key: AttemptKey, data: bytes, length: int) -> bytes:
    """`data`, which was read of a log. Raises FileNotFoundError if it is not `length` bytes: some were deleted."""
    if len(data) != length:
        raise FileNotFoundError(errno.ENOENT, f"the log of attempt {key} was deleted")
    return data
