"""Stores the output of workloads in files of one daemon (`sql_logs` stores it in a database).

Each node has one raw file, and each attempt one index. `HOME/logs/<job>/<task>/<generation>/<rank>.log` holds exactly
the bytes of the node's log, in order: a chunk is appended only at the end of the file, so nothing is lost or stored
twice, however often a node sends it. `index` records the order in which the chunks of several ranks were received, in
lines `<rank> <length>`. What one rank sends without another in between is listed once, when it is 64 KiB or another
rank sends something: a node may send single bytes. Until then its length is in memory. So a crash leaves bytes that
the index does not list; the next process completes the index before it first reads or writes the attempt's log.
"""

from __future__ import annotations

import contextlib
import os
import queue
import resource
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from perdure.controller.runtime.failpoints import failpoint
from perdure.controller.runtime.keys import AttemptKey
from perdure.controller.runtime.loop_guard import LoopGuard
from perdure.controller.store.logs.protocol import Chunk, LogWrite, require_whole

_MAX_OPEN_NODES = 1024  # nodes whose files stay open
_CHUNK_BYTES = 2**16  # listed at once
_READ_BYTES = 2**18  # read at once
# Several ranks that send single bytes by turns make the index longer than the log. In an index of this length the order
# of ranks is kept to within `_COARSE_BYTES`.
_LONG_INDEX_BYTES, _COARSE_BYTES = 2**20, 2**12


class IndexReader:
    """Reads an attempt's index file. `unlisted_sizes`: the sizes of the logs that are longer than the index says."""

    has_buffered = False

    def __init__(self, index: Path, unlisted_sizes: Callable[[], Mapping[int, int]] = dict) -> None:
        self._index = index
        self._unlisted_sizes = unlisted_sizes
        self._position = 0
        self._listed: dict[int, int] = {}  # bytes of each rank
        self._ends: dict[int, int] = {}  # of what was returned of each rank

    def read_new(self) -> list[Chunk]:
        sizes = self._unlisted_sizes()  # first, so that what is listed meanwhile keeps its place
        chunks: list[Chunk] = []
        for line in self._new_lines():
            rank, length = (int(word) for word in line.split())
            self._listed[rank] = self._listed.get(rank, 0) + length
            self._extend(chunks, rank, self._listed[rank])
        for rank, size in sizes.items():
            self._extend(chunks, rank, size)
        return chunks

    def copy(self) -> IndexReader:
        other = IndexReader(self._index, self._unlisted_sizes)
        other._position, other._listed, other._ends = self._position, dict(self._listed), dict(self._ends)
        return other

    def _new_lines(self) -> list[bytes]:
        try:
            with self._index.open("rb") as file:
                file.seek(self._position)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._position += len(whole)
        return whole.splitlines()

    def _extend(self, chunks: list[Chunk], rank: int, end: int) -> None:
        """Add what was not returned yet of a rank's first `end` bytes."""
        start = self._ends.get(rank, 0)
        if end <= start:
            return
        self._ends[rank] = end
        if chunks and chunks[-1].rank == rank and end - chunks[-1].offset <= _READ_BYTES:
            start = chunks.pop().offset
        chunks.append(Chunk(rank, start, end - start))


@dataclass
class _Open:
    """The open files of a node: its log, which has `size` bytes, and the index of its attempt."""

    raw: FileIO
    index: FileIO
    size: int

    def close(self) -> None:
        self.raw.close()
        self.index.close()


class FileLogStore:
    """A `LogStore` in files below `home`."""

    linger_s = 0.0
    small_writes_per_s: float | None = None
    write_overhead = 12  # a line of the index

    def __init__(self, home: Path) -> None:
        self._root = home / "logs"
        self._lock = threading.Lock()
        self._open: dict[tuple[AttemptKey, int], _Open] = {}
        self._unlisted: dict[AttemptKey, dict[int, int]] = {}  # bytes of ranks, of attempts whose index lacks them
        self._indexed: dict[int, set[AttemptKey]] = {}  # by job: attempts whose index this process has completed
        self._unprepared: queue.SimpleQueue[tuple[AttemptKey, int]] = queue.SimpleQueue()
        self._preparing: threading.Thread | None = None
        self._max_open_nodes = min(_MAX_OPEN_NODES, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 16)

    def folder(self, key: AttemptKey) -> Path:
        return self._root / str(key[0]) / str(key[1]) / str(key[2])

    def size(self, key: AttemptKey, rank: int) -> int:
        try:
            return (self.folder(key) / f"{rank}.log").stat().st_size
        except FileNotFoundError:
            return 0

    def sizes(self, places: Sequence[tuple[AttemptKey, int]]) -> list[int]:
        return [self.size(*place) for place in places]

    def prepare(self, places: Sequence[tuple[AttemptKey, int]]) -> None:
        for place in places:
            self._unprepared.put(place)
        with self._lock:
            if places and self._preparing is None:
                self._preparing = threading.Thread(target=self._prepare_all, name="log-files", daemon=True)
                self._preparing.start()

    def _prepare_all(self) -> None:
        guard = LoopGuard("log-files")
        while True:
            key, rank = self._unprepared.get()
            with guard, contextlib.suppress(OSError):  # then the first write of the node raises it
                folder = self.folder(key)
                _make_new(folder)
                for name in (f"{rank}.log", "index"):
                    os.close(os.open(folder / name, os.O_CREAT | os.O_WRONLY, 0o666))

    def append_all(self, writes: Sequence[LogWrite]) -> list[int | Exception]:
        results: list[int | Exception] = []
        for write in writes:
            try:
                results.append(self.append(*write))
            except OSError as error:  # the disk may be full, or one file too large
                results.append(error)
        return results

    def append(self, key: AttemptKey, rank: int, offset: int, data: bytes) -> int:
        with self._lock:
            open_files = self._open.pop((key, rank), None)
            if open_files is None:
                open_files = self._open_files(key, rank, is_needed=offset <= self.size(key, rank) < offset + len(data))
            if open_files is None:
                return self.size(key, rank)
            self._keep_open(key, rank, open_files)
            size = open_files.size
            new = data[size - offset :] if offset <= size else b""
            if not new:
                return size
            with _all_or_nothing(open_files.raw, size):
                _write(open_files.raw, new)
                failpoint("log.appending")
                self._add_to_index(key, rank, open_files.index, len(new))
            open_files.size += len(new)
            failpoint("log.appended")
            return open_files.size

    def overhead(self, key: AttemptKey, rank: int) -> int:  # noqa: ARG002 - the index is of all ranks
        folder = self.folder(key)
        try:
            return (folder / "index").stat().st_size // max(1, len(list(folder.glob("*.log"))))
        except FileNotFoundError:
            return 0

    def _add_to_index(self, key: AttemptKey, rank: int, index: FileIO, length: int) -> None:
        """List a chunk, or add it to those that are listed later. Raises OSError; then nothing is added."""
        unlisted = self._unlisted.setdefault(key, {})
        is_long = _is_long(index)
        for other in [] if is_long else [other for other in unlisted if other != rank]:
            self._list(key, other, index)
        if unlisted.get(rank, 0) + length > (_COARSE_BYTES if is_long else _CHUNK_BYTES):
            self._list(key, rank, index)
        self._unlisted.setdefault(key, {})[rank] = unlisted.get(rank, 0) + length

    def _list(self, key: AttemptKey, rank: int, index: FileIO) -> None:
        unlisted = self._unlisted.get(key, {})
        if rank in unlisted:
            with _all_or_nothing(index, index.seek(0, os.SEEK_END)):
                _write(index, b"%d %d\n" % (rank, unlisted[rank]))
            del unlisted[rank]
            if not unlisted:
                del self._unlisted[key]

    def _unlisted_sizes(self, key: AttemptKey) -> dict[int, int]:
        """Sizes of logs that readers may show beyond the index, which will list these bytes before any others."""
        with self._lock:
            unlisted = self._unlisted.get(key, {})
            nodes = {rank: self._open[key, rank] for rank in unlisted}
            if nodes and _is_long(next(iter(nodes.values())).index):  # it may list them in another order
                with contextlib.suppress(OSError):
                    for rank, node in nodes.items():
                        self._list(key, rank, node.index)
                return {}
            return {rank: node.size for rank, node in nodes.items()}

    def _open_files(self, key: AttemptKey, rank: int, *, is_needed: bool) -> _Open | None:
        """Open the node's files; None if there is nothing to write."""
        if not is_needed:
            return None
        folder = self.folder(key)
        if _make_new(folder):
            self._indexed.setdefault(key[0], set()).add(key)
        self._complete_index(key)
        raw = (folder / f"{rank}.log").open("ab", buffering=0)
        return _Open(raw, (folder / "index").open("ab", buffering=0), raw.seek(0, os.SEEK_END))

    def _keep_open(self, key: AttemptKey, rank: int, files: _Open) -> None:
        """Keep the files of the nodes that wrote most recently open."""
        self._open[key, rank] = files
        while len(self._open) > self._max_open_nodes:
            (old_key, old_rank), old = next(iter(self._open.items()))
            self._list(old_key, old_rank, old.index)
            self._open.pop((old_key, old_rank)).close()

    def reader(self, key: AttemptKey) -> IndexReader:
        with self._lock, contextlib.suppress(OSError):  # on a full disk, the rest is shown once there is room
            self._complete_index(key)
        return IndexReader(self.folder(key) / "index", lambda: self._unlisted_sizes(key))

    def _complete_index(self, key: AttemptKey) -> None:
        """List the bytes that a crash left out of the index. The caller holds the lock."""
        indexed = self._indexed.setdefault(key[0], set())
        if key in indexed:
            return
        folder = self.folder(key)
        index = folder / "index"
        if index.exists():
            whole = index.read_bytes().rfind(b"\n") + 1
            os.truncate(index, whole)
        listed: dict[int, int] = {}
        for chunk in IndexReader(index).read_new():
            listed[chunk.rank] = listed.get(chunk.rank, 0) + chunk.length
        for path in folder.glob("*.log"):
            missing = path.stat().st_size - listed.get(int(path.stem), 0)
            if missing > 0:
                with index.open("ab", buffering=0) as file:
                    file.write(b"%d %d\n" % (int(path.stem), missing))
        indexed.add(key)

    def remove(self, job_id: int) -> bool:
        with self._lock:
            for key, rank in [(key, rank) for key, rank in self._open if key[0] == job_id]:
                self._open.pop((key, rank)).close()
                self._unlisted.pop(key, None)
            self._indexed.pop(job_id, None)
        try:
            shutil.rmtree(self._root / str(job_id))
        except FileNotFoundError:
            return False
        return True

    def read_chunk(self, key: AttemptKey, chunk: Chunk) -> bytes:
        return self._read(key, chunk.rank, chunk.offset, chunk.length)

    def read_range(self, key: AttemptKey, rank: int, offset: int, length: int) -> bytes:
        return require_whole(key, self._read(key, rank, offset, length), length)

    def _read(self, key: AttemptKey, rank: int, offset: int, length: int) -> bytes:
        # As text: paths as objects would take a third of the time that it takes to read a long log.
        with open(f"{self._root}/{key[0]}/{key[1]}/{key[2]}/{rank}.log", "rb", buffering=0) as raw:
            raw.seek(offset)
            return raw.read(length)


def _make_new(folder: Path) -> bool:
    """Create a folder and those above it. False if there is one already. Raises OSError."""
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        return False
    return True


def _is_long(index: FileIO) -> bool:
    return index.seek(0, os.SEEK_END) >= _LONG_INDEX_BYTES


def _write(file: FileIO, data: bytes) -> None:
    """Write all of `data`. Raises OSError; after a short write, the next write raises it."""
    while data:
        data = data[file.write(data) :]


@contextlib.contextmanager
def _all_or_nothing(file: FileIO, size: int) -> Iterator[None]:
    """Truncate `file` to `size` if writing fails: on a full disk, a part may have been written."""
    try:
        yield
    except OSError:
        os.truncate(file.fileno(), size)
        raise
