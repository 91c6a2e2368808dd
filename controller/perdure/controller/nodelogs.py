"""What the workloads printed: kept by byte offset, in files of one daemon's own (in a database: `sharedlogs`).

One raw file per node, and one index per attempt. `HOME/logs/<job>/<task>/<generation>/<rank>.log` holds exactly the
bytes that the node had, in order: a chunk is appended only where the file ends, so nothing is lost and nothing is there
twice, whatever is sent again. `index` says in which order chunks of several ranks came in: lines `<rank> <length>`.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Protocol

from perdure.controller.crashpoints import reach
from perdure.controller.keyring import AttemptKey

Piece = tuple[AttemptKey, int, int, bytes]
"""What `Logs.append` takes"""

_MOST_OPEN = 1024  # nodes whose files stay open


@dataclass(frozen=True)
class Chunk:
    """`length` bytes of `rank`'s log, from `offset`. `data`: these bytes, where the reader had them at hand."""

    rank: int
    offset: int
    length: int
    data: bytes | None = field(default=None, compare=False, repr=False)


class ChunkReader(Protocol):
    """Reads what came in for an attempt, on from where it stopped."""

    @property
    def is_at_hand(self) -> bool:
        """Whether `new` now says something, and the data of it, without asking a disk or a database."""
        ...

    def new(self) -> list[Chunk]:
        """Chunks that came since the last call, in the order they came."""
        ...


class Logs(Protocol):
    """Every node's log. Writers append from any thread; readers take what is there. All may be called at any time.

    `gather_s`: how long from one write to the next is best waited for more, while nobody has much to say.
    """

    gather_s: float

    def size(self, key: AttemptKey, rank: int) -> int:
        """Bytes kept of a node's log: the offset from which more is wanted."""
        ...

    def append(self, key: AttemptKey, rank: int, offset: int, data: bytes) -> int:
        """Keep `data`, which begins at `offset` of the node's log; returns how many bytes are kept of it in all.

        What is known already is passed over. Data beyond a gap is not kept: the node sends again from what is returned.
        Raises OSError where nothing can be written, a full disk for one; then nothing of `data` is kept.
        """
        ...

    def append_all(self, pieces: Sequence[Piece]) -> Sequence[int | Exception]:
        """`append` for several, one after the other. What it raises for one of them is its answer, unless it is raised
        for all."""
        ...

    def sizes(self, places: Sequence[tuple[AttemptKey, int]]) -> list[int]:
        """`size` for several."""
        ...

    def reader(self, key: AttemptKey) -> ChunkReader: ...

    def read(self, key: AttemptKey, chunk: Chunk) -> bytes: ...

    def remove(self, job_id: int) -> bool:
        """Remove a part of the logs of a job that has settled. Whether there was any: then call again."""
        ...


class IndexReader:
    """Reads an attempt's index file."""

    is_at_hand = False

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


@dataclass
class _Open:
    """A node's file and its attempt's index; `size` in bytes."""

    raw: FileIO
    index: FileIO
    size: int

    def close(self) -> None:
        self.raw.close()
        self.index.close()


class NodeLogs:
    """Logs in files below `home`."""

    gather_s = 0.0

    def __init__(self, home: Path) -> None:
        self._root = home / "logs"
        self._lock = threading.Lock()
        self._open: dict[tuple[AttemptKey, int], _Open] = {}
        self._most_open = min(_MOST_OPEN, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 16)

    def folder(self, key: AttemptKey) -> Path:
        return self._root / str(key[0]) / str(key[1]) / str(key[2])

    def size(self, key: AttemptKey, rank: int) -> int:
        try:
            return (self.folder(key) / f"{rank}.log").stat().st_size
        except FileNotFoundError:
            return 0

    def sizes(self, places: Sequence[tuple[AttemptKey, int]]) -> list[int]:
        return [self.size(*place) for place in places]

    def append_all(self, pieces: Sequence[Piece]) -> list[int | Exception]:
        answers: list[int | Exception] = []
        for piece in pieces:
            try:
                answers.append(self.append(*piece))
            except OSError as error:  # one disk may be full, or one file too large
                answers.append(error)
        return answers

    def append(self, key: AttemptKey, rank: int, offset: int, data: bytes) -> int:
        with self._lock:
            open_files = self._open.pop((key, rank), None)
            if open_files is None:
                open_files = self._begin(key, rank, is_wanted=offset <= self.size(key, rank) < offset + len(data))
            if open_files is None:
                return self.size(key, rank)
            self._keep(key, rank, open_files)
            size = open_files.size
            fresh = data[size - offset :] if offset <= size else b""
            if not fresh:
                return size
            with _all_or_nothing(open_files.raw, size):
                _write(open_files.raw, fresh)
                reach("log.appending")
                with _all_or_nothing(open_files.index, open_files.index.seek(0, os.SEEK_END)):
                    _write(open_files.index, b"%d %d\n" % (rank, len(fresh)))
            open_files.size += len(fresh)
            reach("log.appended")
            return open_files.size

    def _begin(self, key: AttemptKey, rank: int, *, is_wanted: bool) -> _Open | None:
        """The node's files, open; None where there is nothing to write."""
        if not is_wanted:
            return None
        folder = self.folder(key)
        folder.mkdir(parents=True, exist_ok=True)
        raw = (folder / f"{rank}.log").open("ab", buffering=0)
        return _Open(raw, (folder / "index").open("ab", buffering=0), raw.seek(0, os.SEEK_END))

    def _keep(self, key: AttemptKey, rank: int, files: _Open) -> None:
        """Of those that write most often the files stay open."""
        self._open[key, rank] = files
        while len(self._open) > self._most_open:
            self._open.pop(next(iter(self._open))).close()

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

    def remove(self, job_id: int) -> bool:
        with self._lock:
            for key, rank in [(key, rank) for key, rank in self._open if key[0] == job_id]:
                self._open.pop((key, rank)).close()
        try:
            shutil.rmtree(self._root / str(job_id))
        except FileNotFoundError:
            return False
        return True

    def read(self, key: AttemptKey, chunk: Chunk) -> bytes:
        with (self.folder(key) / f"{chunk.rank}.log").open("rb") as raw:
            raw.seek(chunk.offset)
            return raw.read(chunk.length)


def _write(file: FileIO, data: bytes) -> None:
    """Write all of `data`. Raises OSError, of which a write that was cut short says nothing: the next one does."""
    while data:
        data = data[file.write(data) :]


@contextlib.contextmanager
def _all_or_nothing(file: FileIO, size: int) -> Iterator[None]:
    """`file` is as long as before, when writing fails: on a full disk a part may have been written."""
    try:
        yield
    except OSError:
        os.truncate(file.fileno(), size)
        raise
