"""Stores the output of workloads in files of one daemon (`sql_logs` stores it in a database).

Each node has one raw file, and each attempt one index. `HOME/logs/<job>/<task>/<generation>/<rank>.log` holds exactly
the bytes of the node's log, in order: a chunk is appended only at the end of the file, so nothing is lost or stored
twice, however often a node sends it. `index` records the order in which the chunks of several ranks were received, in
lines `<rank> <length>`. A crash between the two writes of an append leaves bytes that the index does not list; the next
process completes the index before it first reads or writes the attempt's log.
"""

from __future__ import annotations

import contextlib
import os
import queue
import resource
import shutil
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from perdure.controller.runtime.failpoints import failpoint
from perdure.controller.runtime.keys import AttemptKey
from perdure.controller.runtime.loop_guard import LoopGuard
from perdure.controller.store.logs.protocol import Chunk, LogWrite

_MAX_OPEN_NODES = 1024  # nodes whose files stay open


class IndexReader:
    """Reads an attempt's index file."""

    has_buffered = False

    def __init__(self, index: Path) -> None:
        self._index = index
        self._position = 0
        self._ends: dict[int, int] = {}

    def read_new(self) -> list[Chunk]:
        try:
            with self._index.open("rb") as file:
                file.seek(self._position)
                data = file.read()
        except FileNotFoundError:
            return []
        whole = data[: data.rfind(b"\n") + 1]
        self._position += len(whole)
        chunks = []
        for line in whole.splitlines():
            rank, length = (int(word) for word in line.split())
            offset = self._ends.get(rank, 0)
            chunks.append(Chunk(rank, offset, length))
            self._ends[rank] = offset + length
        return chunks


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

    def __init__(self, home: Path) -> None:
        self._root = home / "logs"
        self._lock = threading.Lock()
        self._open: dict[tuple[AttemptKey, int], _Open] = {}
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
                with _all_or_nothing(open_files.index, open_files.index.seek(0, os.SEEK_END)):
                    _write(open_files.index, b"%d %d\n" % (rank, len(new)))
            open_files.size += len(new)
            failpoint("log.appended")
            return open_files.size

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
            self._open.pop(next(iter(self._open))).close()

    def reader(self, key: AttemptKey) -> IndexReader:
        with self._lock, contextlib.suppress(OSError):  # on a full disk, the rest is shown once there is room
            self._complete_index(key)
        return IndexReader(self.folder(key) / "index")

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
            self._indexed.pop(job_id, None)
        try:
            shutil.rmtree(self._root / str(job_id))
        except FileNotFoundError:
            return False
        return True

    def read_chunk(self, key: AttemptKey, chunk: Chunk) -> bytes:
        with (self.folder(key) / f"{chunk.rank}.log").open("rb") as raw:
            raw.seek(chunk.offset)
            return raw.read(chunk.length)


def _make_new(folder: Path) -> bool:
    """Create a folder and those above it. False if there is one already. Raises OSError."""
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        return False
    return True


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
