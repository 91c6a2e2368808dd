"""Bytes to a file and back at the speed of the disk: digests are computed beside the reading and writing, not after.

Transfers and digests all run without the interpreter's lock, so a few threads are enough. On a local disk several
blocks are under way at once, past the page cache (`direct`); elsewhere one after the other, as mounts like it best.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial

from perdure.checkpoint import digest, samples
from perdure.checkpoint.manifest import FileRecord
from perdure.checkpoint.state import direct
from perdure.checkpoint.state.buffers import large_buffer
from perdure.checkpoint.state.crew import Crew, Job

BLOCK_BYTES = 4 * 1024 * 1024
_THREADS = 4  # transfers at once on a local disk: more bring nothing (measured on an NVMe disk)
_AHEAD = 8  # blocks in memory that are not yet written
_WORTH_RESERVING = 1024 * 1024


class Damaged(ValueError):
    """The bytes are not those that were committed. The text says how."""


def write(path: str, pieces: Iterable[memoryview], *, size_hint: int = 0) -> tuple[int, str, str, str]:
    """Write `pieces` to the new file `path` and flush it to its disk; returns (bytes, digest, algorithm, digest of a
    sample).

    `size_hint`: how many bytes they will have, where that is known; without it there is no sample. Raises OSError,
    FileExistsError among them; then the file is gone again.
    """
    algorithm = digest.preferred_algorithm()
    hasher, sampler = digest.hasher(algorithm), samples.Sampler(algorithm, size_hint)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        is_large = size_hint >= _WORTH_RESERVING
        is_exact = not (is_large and direct.reserve(descriptor, size_hint))
        is_direct = is_large and direct.begin(descriptor)
        size = written = 0
        under_way: deque[Job[None]] = deque()
        with Crew(_THREADS if is_direct else 1, "perdure-write") as writers:
            for content, block in _aligned(pieces) if is_direct else _plain(pieces):
                hasher.update(content)
                sampler.update(content)
                if len(under_way) == _AHEAD:
                    under_way.popleft().result()
                under_way.append(writers.submit(partial(direct.write, descriptor, block, size)))
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


def read(path: str, record: FileRecord, verify: str = samples.FULL) -> memoryview:
    """The file's bytes in fresh memory, compared with `record` as closely as `verify` says (`samples`).

    Raises Damaged, OSError, and as `digest` does.
    """
    hasher: digest.Hasher | samples.Sampler | None = None
    wanted = ""
    if verify == samples.SAMPLED and record.sample:
        hasher, wanted = samples.Sampler(record.algorithm, record.size), record.sample
    elif verify != samples.SIZE:
        hasher, wanted = digest.hasher(record.algorithm), record.digest
    with open(path, "rb", buffering=0) as file:
        size = os.fstat(file.fileno()).st_size
        if size != record.size:
            raise Damaged(f"{record.path} has {size} bytes instead of {record.size}")
        data = large_buffer(-(-size // direct.ALIGNMENT) * direct.ALIGNMENT)
        filled = 0
        for block in _blocks_of(file.fileno(), size, data):
            if hasher is not None:
                hasher.update(block)
            filled += len(block)
    if filled != size:
        raise Damaged(f"{record.path} has {filled} bytes instead of {record.size}")
    if hasher is not None and hasher.hexdigest() != wanted:
        raise Damaged(f"{record.path} differs from what was saved ({record.algorithm})")
    return data[:size]


def _blocks_of(descriptor: int, size: int, data: memoryview) -> Iterator[memoryview]:
    """The file's blocks in their order, each as soon as it lies in `data`; ends early where the file does."""
    is_local = size >= BLOCK_BYTES and direct.begin(descriptor)
    if is_local and direct.is_cached(descriptor, size):
        direct.end(descriptor)

    def fetch(begin: int) -> memoryview:
        count = direct.read(descriptor, data[begin : begin + BLOCK_BYTES], begin)
        return data[begin : min(begin + count, size)]

    with Crew(_THREADS if is_local else 1, "perdure-read") as readers:
        yield from readers.map(fetch, range(0, size, BLOCK_BYTES), ahead=_AHEAD)


def _plain(pieces: Iterable[memoryview]) -> Iterator[tuple[memoryview, memoryview]]:
    for piece in pieces:
        for begin in range(0, len(piece), BLOCK_BYTES):
            block = piece[begin : begin + BLOCK_BYTES]
            yield block, block


def _aligned(pieces: Iterable[memoryview]) -> Iterator[tuple[memoryview, memoryview]]:
    """(content, block to write) for the whole stream. Blocks are aligned, in memory and in length; only the last one is
    longer than its content. What lies right is not copied; the rest goes through buffers that are used in turn, each
    again only when the writers have done with it."""
    buffers: list[memoryview] = []
    turn = filled = 0
    for piece in pieces:
        begin = 0
        while begin < len(piece):
            left = piece[begin : begin + BLOCK_BYTES]
            if not filled and len(left) == BLOCK_BYTES and direct.is_aligned(left):
                yield left, left
                begin += BLOCK_BYTES
                continue
            if len(buffers) <= turn:
                buffers.append(large_buffer(BLOCK_BYTES))
            taken = piece[begin : begin + BLOCK_BYTES - filled]
            buffers[turn][filled : filled + len(taken)] = taken
            begin, filled = begin + len(taken), filled + len(taken)
            if filled == BLOCK_BYTES:
                yield buffers[turn], buffers[turn]
                turn, filled = (turn + 1) % (_AHEAD + 1), 0
    if filled:
        end = -(-filled // direct.ALIGNMENT) * direct.ALIGNMENT
        yield buffers[turn][:filled], buffers[turn][:end]
