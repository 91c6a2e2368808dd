"""Bytes to a file and back at the speed of the disk: digests are computed during the transfer, not after it.

Transfers and digests run without the interpreter's lock, so a few threads are enough. On a local disk several blocks
are transferred at once, past the page cache (`direct_io`). Elsewhere they are transferred in sequence, which suits
mounts.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial

from perdure.checkpoint.format import digest, sampling
from perdure.checkpoint.format.manifest import FileRecord
from perdure.checkpoint.format.regular_file import open_regular
from perdure.checkpoint.state import direct_io
from perdure.checkpoint.state.buffers import large_buffer
from perdure.checkpoint.state.worker_threads import Future, WorkerThreads

BLOCK_BYTES = 4 * 1024 * 1024
_THREADS = 4  # transfers at once on a local disk; more are no faster (measured on an NVMe disk)
_MAX_PENDING_BLOCKS = 8  # in memory and not yet written
_MIN_RESERVED_BYTES = 1024 * 1024


class DamagedFile(ValueError):
    """The bytes are not those that were committed. The message says how."""


def write_synced(path: str, pieces: Iterable[memoryview], *, size_hint: int = 0) -> tuple[int, str, str, str]:
    """Write `pieces` to the new file `path` and flush it to its disk; returns (bytes, digest, algorithm, digest of a
    sample).

    `size_hint`: their total size, if it is known; without it there is no sample. Raises OSError (including
    FileExistsError); the file is then removed.
    """
    algorithm = digest.preferred_algorithm()
    hasher, sampler = digest.new_hasher(algorithm), sampling.Sampler(algorithm, size_hint)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        is_large = size_hint >= _MIN_RESERVED_BYTES
        is_exact = not (is_large and direct_io.reserve(descriptor, size_hint))
        is_direct = is_large and direct_io.enable(descriptor)
        size = written = 0
        under_way: deque[Future[None]] = deque()
        with WorkerThreads(_THREADS if is_direct else 1, "perdure-write") as writers:
            for content, block in _aligned_blocks(pieces) if is_direct else _blocks(pieces):
                hasher.update(content)
                sampler.update(content)
                if len(under_way) == _MAX_PENDING_BLOCKS:
                    under_way.popleft().result()
                under_way.append(writers.submit(partial(direct_io.write_at, descriptor, block, size)))
                size += len(content)
                written += len(block)
            for one in under_way:
                one.result()
        if not is_exact or written != size:
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
    return size, hasher.hexdigest(), algorithm, sampler.hexdigest() if size == size_hint else ""


def read_verified(path: str, record: FileRecord, verify: str = sampling.FULL) -> memoryview:
    """The file's bytes in new memory, compared with `record` by the mode `verify` of `sampling`.

    Raises DamagedFile, OSError, and as `digest` does.
    """
    hasher: digest.Hasher | sampling.Sampler | None = None
    expected = ""
    if verify == sampling.SAMPLED and record.sample:
        hasher, expected = sampling.Sampler(record.algorithm, record.size), record.sample
    elif verify != sampling.SIZE:
        hasher, expected = digest.new_hasher(record.algorithm), record.digest
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size != record.size:
            raise DamagedFile(f"{record.path} has {size} bytes instead of {record.size}")
        data = large_buffer(-(-size // direct_io.ALIGNMENT) * direct_io.ALIGNMENT)
        filled = 0
        for block in _blocks_of(file.fileno(), size, data):
            if hasher is not None:
                hasher.update(block)
            filled += len(block)
    if filled != size:
        raise DamagedFile(f"{record.path} has {filled} bytes instead of {record.size}")
    if hasher is not None and hasher.hexdigest() != expected:
        raise DamagedFile(f"{record.path} differs from what was saved ({record.algorithm})")
    return data[:size]


def _blocks_of(descriptor: int, size: int, data: memoryview) -> Iterator[memoryview]:
    """The file's blocks in their order, each as soon as it is in `data`; ends early if the file does."""
    is_local = size >= BLOCK_BYTES and direct_io.enable(descriptor)
    if is_local and direct_io.is_cached(descriptor, size):
        direct_io.disable(descriptor)

    def fetch(begin: int) -> memoryview:
        count = direct_io.read_at(descriptor, data[begin : begin + BLOCK_BYTES], begin)
        return data[begin : min(begin + count, size)]

    with WorkerThreads(_THREADS if is_local else 1, "perdure-read") as readers:
        yield from readers.map(fetch, range(0, size, BLOCK_BYTES), ahead=_MAX_PENDING_BLOCKS)


def _blocks(pieces: Iterable[memoryview]) -> Iterator[tuple[memoryview, memoryview]]:
    for piece in pieces:
        for begin in range(0, len(piece), BLOCK_BYTES):
            block = piece[begin : begin + BLOCK_BYTES]
            yield block, block


def _aligned_blocks(pieces: Iterable[memoryview]) -> Iterator[tuple[memoryview, memoryview]]:
    """(content, block to write) for the whole stream. Blocks are aligned, in memory and in length; only the last one is
    longer than its content. Aligned pieces are not copied. The rest goes through a ring of buffers, each of which is
    reused only after the writers are done with it."""
    buffers: list[memoryview] = []
    current = filled = 0
    for piece in pieces:
        begin = 0
        while begin < len(piece):
            left = piece[begin : begin + BLOCK_BYTES]
            if not filled and len(left) == BLOCK_BYTES and direct_io.is_aligned(left):
                yield left, left
                begin += BLOCK_BYTES
                continue
            if len(buffers) <= current:
                buffers.append(large_buffer(BLOCK_BYTES))
            taken = piece[begin : begin + BLOCK_BYTES - filled]
            buffers[current][filled : filled + len(taken)] = taken
            begin, filled = begin + len(taken), filled + len(taken)
            if filled == BLOCK_BYTES:
                yield buffers[current], buffers[current]
                current, filled = (current + 1) % (_MAX_PENDING_BLOCKS + 1), 0
    if filled:
        end = -(-filled // direct_io.ALIGNMENT) * direct_io.ALIGNMENT
        yield buffers[current][:filled], buffers[current][:end]
