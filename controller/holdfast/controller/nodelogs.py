"""What the workloads printed: kept by byte offset, in files of one daemon's own (in a database: `sharedlogs`).

One raw file per node, and one index per attempt. `HOME/logs/<job>/<task>/<generation>/<rank>.log` holds exactly the
bytes that the node had, in order: a chunk is appended only where the file ends, so nothing is lost and nothing is there
twice, whatever is sent again. `index` says in which order chunks of several ranks came in: lines `<rank> <length>`.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from holdfast.controller.crashpoints import reach
from holdfast.controller.keyring import AttemptKey


@dataclass(frozen=True)
class Chunk:
    """`length` bytes of `rank`'s log, from `offset`."""

    rank: int
    offset: int
    length: int


class ChunkReader(Protocol):
    """Reads what came in for an attempt, on from where it stopped."""

    def new(self) -> list[Chunk]:
        """Chunks that came since the last call, in the order they came."""
        ...


class Logs(Protocol):
    """Every node's log. Writers append from any thread; readers take what is there. All may be called at any time."""

    def size(self, key: AttemptKey, rank: int) -> int:
        """Bytes kept of a node's log: the offset from which more is wanted."""
        ...

    def append(self, key: AttemptKey, rank: int, offset: int, data: bytes) -> int:
        """Keep `data`, which begins at `offset` of the node's log; returns how many bytes are kept of it in all.

        What is known already is passed over. Data beyond a gap is not kept: the node sends again from what is returned.
        Raises OSError where nothing can be written, a full disk for one; then nothing of `data` is kept.
        """
        ...

    def reader(self, key: AttemptKey) -> ChunkReader: ...

    def read(self, key: AttemptKey, chunk: Chunk) -> bytes: ...


class IndexReader:
    """Reads an attempt's index file."""

    def __init__(self, index: Path) -> None:
        self._index = index
        self._position = 0
        self._ends: dict[int, int] = {}

    def new(self) -> list[Chunk]:
        try:
            with self._index.open("rb") as file:
                file.seek(self._position)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._position += len(whole)
        found = []
        for line in whole.splitlines():
            rank, length = (int(word) for word in line.split())
            offset = self._ends.get(rank, 0)
            found.append(Chunk(rank, offset, length))
            self._ends[rank] = offset + length
        return found


class NodeLogs:
    """Logs in files below `home`."""

    def __init__(self, home: Path) -> None:
        self._root = home / "logs"
        self._lock = threading.Lock()

    def folder(self, key: AttemptKey) -> Path:
        return self._root / str(key[0]) / str(key[1]) / str(key[2])

    def size(self, key: AttemptKey, rank: int) -> int:
        try:
            return (self.folder(key) / f"{rank}.log").stat().st_size
        except FileNotFoundError:
            return 0

    def append(self, key: AttemptKey, rank: int, offset: int, data: bytes) -> int:
        folder = self.folder(key)
        with self._lock:
            size = self.size(key, rank)
            fresh = data[size - offset :] if offset <= size else b""
            if not fresh:
                return size
            if size == 0:
                folder.mkdir(parents=True, exist_ok=True)
            with _all_or_nothing(folder / f"{rank}.log") as raw:
                raw.write(fresh)
                raw.flush()
                reach("log.appending")
                with _all_or_nothing(folder / "index") as index:
                    index.write(b"%d %d\n" % (rank, len(fresh)))
            reach("log.appended")
            return size + len(fresh)

    def reader(self, key: AttemptKey) -> IndexReader:
        return IndexReader(self.folder(key) / "index")

    def repair(self, key: AttemptKey) -> None:
        """Make the index name every byte that is kept: a crash may have come between the two writes."""
        folder = self.folder(key)
        if not folder.is_dir():
            return
        with self._lock:
            index = folder / "index"
            if index.exists():
                whole = index.read_bytes().rfind(b"\n") + 1
                os.truncate(index, whole)
            named: dict[int, int] = {}
            for chunk in self.reader(key).new():
                named[chunk.rank] = named.get(chunk.rank, 0) + chunk.length
            for path in folder.glob("*.log"):
                missing = path.stat().st_size - named.get(int(path.stem), 0)
                if missing > 0:
                    with index.open("ab", buffering=0) as file:
                        file.write(b"%d %d\n" % (int(path.stem), missing))

    def read(self, key: AttemptKey, chunk: Chunk) -> bytes:
        with (self.folder(key) / f"{chunk.rank}.log").open("rb") as raw:
            raw.seek(chunk.offset)
            return raw.read(chunk.length)


@contextlib.contextmanager
def _all_or_nothing(path: Path) -> Iterator[BinaryIO]:
    """A file to append to, which is as long as before when that fails: on a full disk a part may have been written."""
    file = path.open("ab")
    size = file.tell()
    try:
        with file:
            yield file
    except OSError:
        os.truncate(path, size)
        raise
