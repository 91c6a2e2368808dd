"""Bounds what a node's output may take: a limit for each log, and a reserve of free space on the disk.

A job prints what it likes, and its output must not fill the controller's disk: then new jobs and cancels would fail. A
log is cut at the limit, with a mark, and its node need not send the rest. While the disk has less free space than the
reserve, logs stay on their nodes; they are sent when there is space again.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog

from perdure.controller.runtime.keys import AttemptKey
from perdure.controller.store.logs.protocol import Chunk, ChunkReader, LogStore, LogWrite

log = structlog.get_logger(__name__)

#: The size that is reported of a log that was cut. A node has less output, so it sends nothing more.
END_OF_CUT_LOG = 2**62
_MAX_REMEMBERED = 20_000  # nodes whose logs' sizes are remembered
_CHECK_INTERVAL_S = 1.0
_CHECK_SHARE = 16  # of the reserve: the free space is looked up again after so much was written
_RESERVED_SHARE = 10  # of a small disk, no more than a tenth is kept free


class LogHeld(OSError):
    """The disk is nearly full: the node keeps its output and sends it later."""


class DiskReserve:
    """Whether the disk of `folder` has less free space than `reserve_bytes`, and than a tenth of the disk.

    May be used from any thread.
    """

    def __init__(self, folder: Path, reserve_bytes: int, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._folder = folder
        self._reserve_bytes = reserve_bytes
        self._monotonic = monotonic
        self._checked_at = float("-inf")
        self._unchecked_bytes = 0  # written since then
        self._is_low = False

    def is_low(self, size: int) -> bool:
        """Whether it is too low to write `size` bytes. The free space is looked up again every second, and earlier
        if much has been written: a job may fill a disk within a second."""
        now = self._monotonic()
        self._unchecked_bytes += size
        if now - self._checked_at >= _CHECK_INTERVAL_S or self._unchecked_bytes > self._reserve_bytes // _CHECK_SHARE:
            total, _, free = shutil.disk_usage(self._folder)
            self._reserve_bytes = min(self._reserve_bytes, total // _RESERVED_SHARE)
            self._checked_at, self._unchecked_bytes = now, 0
            is_low = free - size < self._reserve_bytes
            if is_low and not self._is_low:
                log.error(
                    "logs.held", folder=str(self._folder), free_mb=round(free / 1e6), why="the disk is nearly full"
                )
            elif self._is_low and not is_low:
                log.warning("logs.released", folder=str(self._folder), free_mb=round(free / 1e6))
            self._is_low = is_low
        return self._is_low


class BoundedLogs:
    """A `LogStore` that stores at most `max_bytes` of each node's log in another one, and a mark. None: no limit.

    A log that was cut has at least `max_bytes`; so no record of it is needed, and a restart changes nothing.
    """

    def __init__(self, logs: LogStore, *, max_bytes: int | None, reserve: DiskReserve | None = None) -> None:
        self.linger_s = logs.linger_s
        self._logs = logs
        self._max_bytes = max_bytes
        self._reserve = reserve
        self._lock = threading.Lock()  # guards `_sizes`
        self._sizes: dict[tuple[AttemptKey, int], int] = {}  # as stored

    def size(self, key: AttemptKey, rank: int) -> int:
        return self.sizes([(key, rank)])[0]

    def sizes(self, places: Sequence[tuple[AttemptKey, int]]) -> list[int]:
        sizes = self._logs.sizes(places)
        for place, size in zip(places, sizes, strict=True):
            self._remember(place, size)
        return [END_OF_CUT_LOG if self._is_cut(size) else size for size in sizes]

    def prepare(self, places: Sequence[tuple[AttemptKey, int]]) -> None:
        if self._reserve is None or not self._reserve.is_low(0):
            self._logs.prepare(places)

    def append(self, key: AttemptKey, rank: int, offset: int, data: bytes) -> int:
        (result,) = self.append_all([(key, rank, offset, data)])
        if isinstance(result, Exception):
            raise result
        return result

    def append_all(self, writes: Sequence[LogWrite]) -> Sequence[int | Exception]:
        if self._reserve is not None and self._reserve.is_low(sum(len(write[3]) for write in writes)):
            return [LogHeld("the controller's disk is nearly full") for _ in writes]
        if self._max_bytes is None:
            return self._logs.append_all(writes)
        results: list[int | Exception] = [END_OF_CUT_LOG] * len(writes)
        kept: list[tuple[int, LogWrite]] = []
        for number, (key, rank, offset, data) in enumerate(writes):
            if not self._is_cut(self._stored(key, rank)):
                kept.append((number, (key, rank, offset, data[: max(0, self._max_bytes - offset)])))
        stored = self._logs.append_all([write for _, write in kept]) if kept else []
        for (number, (key, rank, _, _)), result in zip(kept, stored, strict=True):
            results[number] = result
            if isinstance(result, int):
                self._remember((key, rank), result)
        for number, (key, rank, offset, data) in enumerate(writes):
            if results[number] == self._max_bytes and offset + len(data) > self._max_bytes:
                results[number] = self._cut(key, rank)
        return results

    def _cut(self, key: AttemptKey, rank: int) -> int:
        assert self._max_bytes is not None
        mark = (
            f"\n[perdure: the log of this node is cut here, because limits.max_log_gib is {self._max_bytes / 2**30:g}. "
            "The job goes on; its further output is not stored.]\n"
        )
        self._remember((key, rank), self._logs.append(key, rank, self._max_bytes, mark.encode()))
        log.warning("log.cut", job=key[0], task=key[1], generation=key[2], rank=rank, bytes=self._max_bytes)
        return END_OF_CUT_LOG

    def _is_cut(self, size: int) -> bool:
        """Whether the mark is in a log of `size` bytes: without it, the log has at most the limit."""
        return self._max_bytes is not None and size > self._max_bytes

    def _stored(self, key: AttemptKey, rank: int) -> int:
        with self._lock:
            size = self._sizes.get((key, rank))
        if size is None:
            size = self._logs.size(key, rank)
            self._remember((key, rank), size)
        return size

    def _remember(self, place: tuple[AttemptKey, int], size: int) -> None:
        with self._lock:
            self._sizes.pop(place, None)
            self._sizes[place] = size
            if len(self._sizes) > _MAX_REMEMBERED:
                del self._sizes[next(iter(self._sizes))]

    def reader(self, key: AttemptKey) -> ChunkReader:
        return self._logs.reader(key)

    def read_chunk(self, key: AttemptKey, chunk: Chunk) -> bytes:
        return self._logs.read_chunk(key, chunk)

    def read_range(self, key: AttemptKey, rank: int, offset: int, length: int) -> bytes:
        return self._logs.read_range(key, rank, offset, length)

    def remove(self, job_id: int) -> bool:
        with self._lock:
            for place in [place for place in self._sizes if place[0][0] == job_id]:
                del self._sizes[place]
        return self._logs.remove(job_id)
