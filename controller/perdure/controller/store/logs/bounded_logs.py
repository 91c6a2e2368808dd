"""Bounds what a node's output may take: a limit for each log, a pace, and a reserve of free space on the disk.

A job prints what it likes, and its output must not fill the controller's disk: then new jobs and cancels would fail. A
log is cut at the limit, with a mark, and its node need not send the rest. The limit includes what the store takes
beside the text. While the disk has less free space than the reserve, logs stay on their nodes; they are sent when there
is space again. A node that sends many small pieces, which a database would store as a row each, keeps them for a moment
and sends them as one.
"""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from perdure.controller.runtime.keys import AttemptKey
from perdure.controller.store.logs.protocol import Chunk, ChunkReader, LogStore, LogWrite

log = structlog.get_logger(__name__)

#: The size that is reported of a log that was cut. A node has less output, so it sends nothing more.
END_OF_CUT_LOG = 2**62
_MAX_REMEMBERED = 20_000  # nodes of whose logs something is remembered
_CHECK_INTERVAL_S = 1.0
_CHECK_SHARE = 16  # of the reserve: the free space is looked up again after so much was written
_RESERVED_SHARE = 10  # of a small disk, no more than a tenth is kept free
_SMALL_BYTES = 4096
_BURST_S = 5.0  # a node that has printed nothing for so long may send small pieces as fast as it likes, that many
_HOLD_S = 10.0
_MARK_END = b"The job goes on; its further output is not stored.]\n"


class LogHeld(OSError):
    """The node keeps its output and sends it again in `retry_s`: the disk is nearly full, or there is more to come."""

    def __init__(self, why: str, retry_s: float = _HOLD_S) -> None:
        super().__init__(why)
        self.retry_s = retry_s


class WritePace:
    """How often each node may write a small piece: a token bucket for each. Not for several threads at a time."""

    def __init__(self, per_s: float, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._per_s = per_s
        self._monotonic = monotonic
        self._buckets: dict[tuple[AttemptKey, int], tuple[float, float]] = {}  # tokens, and when

    def wait_s(self, place: tuple[AttemptKey, int], size: int) -> float:
        """How long a write of `size` bytes should wait; 0: it is made now, and counts."""
        if size >= _SMALL_BYTES:
            return 0.0
        now, most = self._monotonic(), self._per_s * _BURST_S
        tokens, at = self._buckets.pop(place, (most, now))
        tokens = min(most, tokens + (now - at) * self._per_s)
        wait_s = max(0.0, (1.0 - tokens) / self._per_s)
        self._buckets[place] = (tokens if wait_s else tokens - 1.0, now)
        if len(self._buckets) > _MAX_REMEMBERED:
            del self._buckets[next(iter(self._buckets))]
        return wait_s


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


@dataclass
class _Stored:
    """What is known of a node's log: its size, about how much it takes beside that, and whether it was cut."""

    size: int
    overhead: int | None = None  # None: not looked up, since the log is short
    is_cut: bool = False


class BoundedLogs:
    """A `LogStore` that stores at most `max_bytes` of each node's log in another one, and a mark. None: no limit.

    A log that was cut ends in the mark; so no record of it is needed, and a restart changes nothing.
    """

    def __init__(
        self,
        logs: LogStore,
        *,
        max_bytes: int | None,
        reserve: DiskReserve | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.linger_s, self.write_overhead = logs.linger_s, logs.write_overhead
        self.small_writes_per_s = logs.small_writes_per_s
        self._logs = logs
        self._max_bytes = max_bytes
        self._reserve = reserve
        self._lock = threading.Lock()  # guards `_known` and `_pace`
        self._known: dict[tuple[AttemptKey, int], _Stored] = {}
        paces = logs.small_writes_per_s
        self._pace = None if paces is None else WritePace(paces, monotonic=monotonic)

    def size(self, key: AttemptKey, rank: int) -> int:
        return self.sizes([(key, rank)])[0]

    def sizes(self, places: Sequence[tuple[AttemptKey, int]]) -> list[int]:
        sizes = self._logs.sizes(places)
        if self._max_bytes is None:
            return sizes
        known = [self._note(place, size) for place, size in zip(places, sizes, strict=True)]
        return [END_OF_CUT_LOG if stored.is_cut else stored.size for stored in known]

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
        results: list[int | Exception] = [END_OF_CUT_LOG] * len(writes)
        kept: list[tuple[int, LogWrite]] = []
        for number, (key, rank, offset, data) in enumerate(writes):
            if (wait_s := self._wait_s((key, rank), len(data))) > 0:
                results[number] = LogHeld("the node sends many small pieces", wait_s)
            elif self._max_bytes is None:
                kept.append((number, (key, rank, offset, data)))
            elif not self._stored(key, rank).is_cut:
                kept.append((number, (key, rank, offset, data[: self._room(key, rank, offset, len(data))])))
        stored_sizes = self._logs.append_all([write for _, write in kept]) if kept else []
        for (number, (key, rank, offset, data)), result in zip(kept, stored_sizes, strict=True):
            results[number] = result
            if isinstance(result, int) and self._max_bytes is not None:
                self._note((key, rank), result, writes=1 if data else 0)
                is_full = result >= offset + len(data) and len(data) < len(writes[number][3])
                if is_full or self._stored(key, rank).is_cut:
                    results[number] = self._cut(key, rank, result)
        return results

    def _room(self, key: AttemptKey, rank: int, offset: int, size: int) -> int:
        """How many of `size` bytes from `offset` on may be stored."""
        assert self._max_bytes is not None
        stored, end = self._stored(key, rank), offset + size
        if self._is_short(end):
            return size
        if stored.overhead is None or end + stored.overhead > self._max_bytes:
            stored.overhead = self._logs.overhead(key, rank)
        return min(size, max(0, self._max_bytes - stored.overhead - offset))

    def _is_short(self, size: int) -> bool:
        """Whether a log of this size is far from the limit, even if every byte came alone."""
        return self._max_bytes is not None and size * (1 + self.write_overhead) <= self._max_bytes // 2

    def _wait_s(self, place: tuple[AttemptKey, int], size: int) -> float:
        if self._pace is None:
            return 0.0
        with self._lock:
            return self._pace.wait_s(place, size)

    def overhead(self, key: AttemptKey, rank: int) -> int:
        return self._logs.overhead(key, rank)

    def _cut(self, key: AttemptKey, rank: int, size: int) -> int:
        assert self._max_bytes is not None
        stored = self._stored(key, rank)
        if not stored.is_cut:
            limit = f"limits.max_log_gib is {self._max_bytes / 2**30:g}"
            mark = f"\n[perdure: the log of this node is cut here, because {limit}. ".encode() + _MARK_END
            stored.size = self._logs.append(key, rank, size, mark)
            stored.is_cut = True
            log.warning("log.cut", job=key[0], task=key[1], generation=key[2], rank=rank, bytes=size)
        return END_OF_CUT_LOG

    def _stored(self, key: AttemptKey, rank: int) -> _Stored:
        with self._lock:
            stored = self._known.get((key, rank))
        return stored or self._note((key, rank), self._logs.size(key, rank))

    def _note(self, place: tuple[AttemptKey, int], size: int, *, writes: int = 0) -> _Stored:
        """Remember the size of a log, after so many writes to it."""
        with self._lock:
            stored = self._known.pop(place, None)
        stored = stored or _Stored(size, is_cut=self._ends_in_mark(place, size))
        stored.size = max(stored.size, size)
        if stored.overhead is not None:
            stored.overhead += writes * self.write_overhead
        with self._lock:
            self._known[place] = stored
            if len(self._known) > _MAX_REMEMBERED:
                del self._known[next(iter(self._known))]
        return stored

    def _ends_in_mark(self, place: tuple[AttemptKey, int], size: int) -> bool:
        """Whether a log was cut, by this process or another one. Short ones are not read for it."""
        length = len(_MARK_END)
        if size < length or self._is_short(size):
            return False
        return self._logs.read_range(*place, size - length, length) == _MARK_END

    def reader(self, key: AttemptKey) -> ChunkReader:
        return self._logs.reader(key)

    def read_chunk(self, key: AttemptKey, chunk: Chunk) -> bytes:
        return self._logs.read_chunk(key, chunk)

    def read_range(self, key: AttemptKey, rank: int, offset: int, length: int) -> bytes:
        return self._logs.read_range(key, rank, offset, length)

    def remove(self, job_id: int) -> bool:
        with self._lock:
            for place in [place for place in self._known if place[0][0] == job_id]:
                del self._known[place]
        return self._logs.remove(job_id)
