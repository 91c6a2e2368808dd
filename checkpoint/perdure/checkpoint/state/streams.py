"""Bytes to a file at the speed of the disk: digests are computed during the transfer, not after it.

Transfers and digests run without the interpreter's lock, so a few threads are enough. On a local disk several blocks
are digested and written at once, past the page cache (`direct_io`). Elsewhere they are written in sequence, which suits
mounts, while the next ones are digested.
"""

from __future__ import annotations

import contextlib
import os
from collections import deque
from collections.abc import Iterable, Iterator
from functools import partial
from typing import NamedTuple

from perdure.checkpoint.format import block_digests, digest, sampling
from perdure.checkpoint.format.block_digests import BLOCK_BYTES
from perdure.checkpoint.format.manifest import FileRecord
from perdure.checkpoint.state import direct_io
from perdure.checkpoint.state.buffers import BufferPool, copy_bytes
from perdure.checkpoint.state.worker_threads import Future, WorkerThreads

READ_THREADS = 4  # transfers at once on a local disk; more are no faster (measured on an NVMe disk)
_WRITE_THREADS = 6  # some of them copy and digest meanwhile
MAX_PENDING_BLOCKS = 8  # in memory and not yet transferred
_MIN_RESERVED_BYTES = 1024 * 1024
# New memory costs about as much as what is done with it, so some is kept from one save to the next: 24 MiB.
_BUFFERS = BufferPool(BLOCK_BYTES, max_unused=_WRITE_THREADS)


class Written(NamedTuple):
    """What was written to a file."""

    size: int  # bytes
    digest: str
    algorithm: str
    sample: str  # empty if none was taken
    block_bytes: int
    blocks: str

    def record(self, path: str) -> FileRecord:
        """The manifest's record of the file. `path`: relative to the directory of the checkpoints."""
        return FileRecord(path, **self._asdict())


def write_synced(path: str, pieces: Iterable[memoryview], *, size_hint: int = 0) -> Written:
    """Write `pieces` to the new file `path` and flush it to its disk.

    `size_hint`: their total size, if it is known; without it there is no sample. Raises OSError (including
    FileExistsError); the file is then removed.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        is_large = size_hint >= _MIN_RESERVED_BYTES
        is_exact = not (is_large and direct_io.reserve(descriptor, size_hint))
        is_direct = is_large and direct_io.enable(descriptor)
        writer = _BlockWriter(descriptor, is_direct)
        sampler = sampling.Sampler(writer.algorithm, size_hint)
        size, digests = _write_blocks(writer, pieces, sampler)
        if not is_exact or (is_direct and size % direct_io.ALIGNMENT):
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
    has_blocks = len(digests) > 1
    return Written(
        size=size,
        digest=block_digests.combine(writer.algorithm, digests),
        algorithm=writer.algorithm,
        sample=sampler.hexdigest() if size == size_hint else "",
        block_bytes=BLOCK_BYTES if has_blocks else 0,
        blocks="".join(digests) if has_blocks else "",
    )


def _write_blocks(
    writer: _BlockWriter, pieces: Iterable[memoryview], sampler: sampling.Sampler
) -> tuple[int, list[str]]:
    """Write all blocks; returns the bytes, and the digest of each block (of the empty one if there are none)."""
    size, digests = 0, []
    under_way: deque[Future[str]] = deque()
    with WorkerThreads(_WRITE_THREADS if writer.is_direct else 1, "perdure-write") as workers:
        for block in _cut(pieces):
            for piece in block:
                sampler.update(piece)
            if len(under_way) == 2 * _WRITE_THREADS:
                digests.append(under_way.popleft().result())
            under_way.append(workers.submit(writer.begin(block, size)))
            size += sum(map(len, block))
        digests += [one.result() for one in under_way]
    return size, digests or [block_digests.hash_block(writer.algorithm, memoryview(b""))]


class _BlockWriter:
    """Digests and writes blocks, each of which consists of pieces. From several threads."""

    def __init__(self, descriptor: int, is_direct: bool) -> None:
        self.algorithm = digest.preferred_algorithm()
        self.is_direct = is_direct
        self._descriptor = descriptor

    def begin(self, block: list[memoryview], offset: int) -> partial[str]:
        """What a thread has to do with the block at `offset`; it returns the block's digest."""
        if self.is_direct:
            return partial(self._write, block, offset)
        content, buffer = self._join(block)
        digest = block_digests.hash_block(self.algorithm, content)
        return partial(self._transfer, content, buffer, offset, digest)

    def _write(self, block: list[memoryview], offset: int) -> str:
        content, buffer = self._join(block)
        digest = block_digests.hash_block(self.algorithm, content)
        return self._transfer(content, buffer, offset, digest)

    def _transfer(self, content: memoryview, buffer: memoryview | None, offset: int, digest: str) -> str:
        if self.is_direct and buffer is not None:
            content = buffer[: -(-len(content) // direct_io.ALIGNMENT) * direct_io.ALIGNMENT]
        direct_io.write_at(self._descriptor, content, offset)
        if buffer is not None:
            _BUFFERS.give_back(buffer)
        return digest

    def _join(self, block: list[memoryview]) -> tuple[memoryview, memoryview | None]:
        """The content of a block in one view, and the buffer that it was copied to. One aligned piece is not copied,
        nor is any single piece if transfers go through the page cache."""
        if len(block) == 1 and (not self.is_direct or direct_io.is_aligned(block[0])):
            return block[0], None
        buffer, filled = _BUFFERS.take(), 0
        for piece in block:
            copy_bytes(buffer[filled : filled + len(piece)], piece)
            filled += len(piece)
        return buffer[:filled], buffer


def _cut(pieces: Iterable[memoryview]) -> Iterator[list[memoryview]]:
    """The stream as blocks of BLOCK_BYTES, each a list of pieces; only the last one may be shorter."""
    block: list[memoryview] = []
    missing = BLOCK_BYTES
    for piece in pieces:
        begin = 0
        while len(piece) - begin >= missing:
            yield [*block, piece[begin : begin + missing]]
            begin, block, missing = begin + missing, [], BLOCK_BYTES
        if begin < len(piece):
            block.append(piece[begin:])
            missing -= len(piece) - begin
    if block:
        yield block
