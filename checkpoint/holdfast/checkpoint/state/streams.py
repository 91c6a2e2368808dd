"""Bytes to a file and back at the speed of the disk: digests are computed beside the reading and writing, not after.

`os.write`, `readinto` and the digests all run without the interpreter's lock, so two threads are enough.
"""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import threading
from collections.abc import Iterable, Iterator

from holdfast.checkpoint import digest
from holdfast.checkpoint.manifest import FileRecord
from holdfast.checkpoint.state.buffers import large_buffer

_BLOCK_BYTES = 8 * 1024 * 1024
_AHEAD = 4  # blocks that the digest may lag behind
_WORTH_RESERVING = 1024 * 1024


class Damaged(ValueError):
    """The bytes are not those that were committed. The text says how."""


def write(path: str, pieces: Iterable[memoryview], *, size_hint: int = 0) -> tuple[int, str, str]:
    """Write `pieces` to the new file `path` and flush it to its disk; returns (bytes, digest, algorithm).

    `size_hint`: how many bytes they will have, where that is known. Raises OSError, FileExistsError among them; then
    the file is gone again.
    """
    algorithm = digest.preferred_algorithm()
    size = 0
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        is_reserved = size_hint >= _WORTH_RESERVING and _reserve(descriptor, size_hint)
        with _Digesting(algorithm) as digesting:
            for block in _blocks(pieces):
                digesting.add(block)
                _write_all(descriptor, block)
                size += len(block)
            if is_reserved and size != size_hint:
                os.ftruncate(descriptor, size)
            os.fsync(descriptor)
        os.close(descriptor)
        descriptor = -1
    except BaseException:
        if descriptor >= 0:
            os.close(descriptor)
        with contextlib.suppress(OSError):
            os.unlink(path)
        raise
    return size, digesting.result, algorithm


def read(path: str, record: FileRecord) -> memoryview:
    """The file's bytes in fresh memory, compared with `record`. Raises Damaged, OSError, and as `digest` does."""
    with open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if size != record.size:
            raise Damaged(f"{record.path} has {size} bytes instead of {record.size}")
        data = large_buffer(size)
        with _Digesting(record.algorithm) as digesting:
            filled = 0
            while filled < size:
                count = file.readinto(data[filled : filled + _BLOCK_BYTES])
                if not count:
                    raise Damaged(f"{record.path} has {filled} bytes instead of {record.size}")
                digesting.add(data[filled : filled + count])
                filled += count
    if digesting.result != record.digest:
        raise Damaged(f"{record.path} differs from what was saved ({record.algorithm})")
    return data


def _blocks(pieces: Iterable[memoryview]) -> Iterator[memoryview]:
    for piece in pieces:
        for begin in range(0, len(piece), _BLOCK_BYTES):
            yield piece[begin : begin + _BLOCK_BYTES]


def _write_all(descriptor: int, block: memoryview) -> None:
    while block:
        block = block[os.write(descriptor, block) :]


def _reserve(descriptor: int, size: int) -> bool:
    """Have the file's blocks allocated at once, where its file system can: the flush is then nearly all of the disk's
    own time (measured on ext4: 0.8 s instead of 1.4 s for 256 MiB), and a disk that is too full says so before anything
    was written. Raises OSError for that; whether it was done otherwise.

    `os.posix_fallocate` would write a byte into every block where a file system can not: a bucket's mount can not.
    """
    import ctypes

    try:
        fallocate = ctypes.CDLL(None, use_errno=True).fallocate
    except (OSError, AttributeError):
        return False
    if not fallocate(descriptor, 0, ctypes.c_int64(0), ctypes.c_int64(size)):
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        raise OSError(code, os.strerror(code))
    return False


class _Digesting:
    """Computes a digest in a thread of its own, a few blocks behind. `result` is there once the context has ended."""

    def __init__(self, algorithm: str) -> None:
        self._hasher = digest.hasher(algorithm)
        self._blocks: queue.Queue[memoryview | None] = queue.Queue(_AHEAD)
        self._thread = threading.Thread(target=self._run, name="holdfast-digest", daemon=True)
        self.result = ""

    def __enter__(self) -> _Digesting:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._blocks.put(None)
        self._thread.join()
        self.result = self._hasher.hexdigest()

    def add(self, block: memoryview) -> None:
        self._blocks.put(block)

    def _run(self) -> None:
        while (block := self._blocks.get()) is not None:
            self._hasher.update(block)
