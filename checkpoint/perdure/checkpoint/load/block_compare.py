"""A file of a checkpoint, read at the speed of the disk, and compared with its record before anyone sees its bytes.

Transfers and digests run without the interpreter's lock. On a local disk several threads read and digest blocks at
once, past the page cache (`direct_io`), unless the file is in it. Elsewhere blocks are read in sequence, which suits
mounts.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial

from perdure.checkpoint.format import block_digests, digest, sampling
from perdure.checkpoint.format.manifest import FileRecord
from perdure.checkpoint.format.regular_file import open_regular
from perdure.checkpoint.state import direct_io
from perdure.checkpoint.state.buffers import BufferPool, large_buffer
from perdure.checkpoint.state.streams import MAX_PENDING_BLOCKS, READ_THREADS
from perdure.checkpoint.state.worker_threads import WorkerThreads


class DamagedFile(ValueError):
    """The bytes are not those that were committed. The message says how."""


def read_verified(path: str, record: FileRecord, verify: str = sampling.FULL) -> memoryview:
    """The file's bytes in new memory, compared with `record` by the mode `verify` of `sampling`.

    Raises DamagedFile, OSError, and as `digest` does.
    """
    reader = BlockReader(record, verify if verify != sampling.SAMPLED or record.sample else sampling.FULL)
    in_order = _hasher_of_all(reader, record, verify)
    data = large_buffer(_padded(record.size))

    def place(number: int) -> memoryview:
        begin, end = reader.span(number)
        return data[begin : _padded(end)]

    with reader.opened(path):
        for block in reader.blocks(range(reader.count), place):
            if in_order is not None:
                in_order[0].update(block)
    if in_order is not None and in_order[0].hexdigest() != in_order[1]:
        raise DamagedFile(f"{record.path} differs from what was saved ({record.algorithm})")
    return data[: record.size]


def _hasher_of_all(
    reader: BlockReader, record: FileRecord, verify: str
) -> tuple[digest.Hasher | sampling.Sampler, str] | None:
    """What has to see all bytes in their order, and the digest that it must find; None if blocks are compared."""
    if verify == sampling.SAMPLED and record.sample:
        return sampling.Sampler(record.algorithm, record.size), record.sample
    if verify == sampling.SIZE or reader.compares_blocks:
        return None
    return digest.new_hasher(record.algorithm), record.digest


def compare(path: str, record: FileRecord) -> None:
    """Compare the file with a record that has digests of its blocks. Raises as `read_verified`."""
    reader = BlockReader(record)
    with reader.opened(path):
        reader.scan(range(reader.count), lambda _begin, _block: None)


class BlockReader:
    """Reads blocks of one file. `compares_blocks`: whether each is compared with its digest, which takes the mode
    "full" and a record that has digests of blocks (or a file of one block)."""

    def __init__(self, record: FileRecord, verify: str = sampling.FULL) -> None:
        """Raises DamagedFile for a record that contradicts itself, and as `digest` does."""
        self._record = record
        self._block_bytes = record.block_bytes or block_digests.BLOCK_BYTES
        self._digests: list[str] = []
        if verify == sampling.FULL:
            self._digests = record.block_digests
            if self._digests and block_digests.combine(record.algorithm, self._digests) != record.digest:
                raise DamagedFile(f"the digests of {record.path} and of its blocks contradict each other")
            if not self._digests and self.count <= 1:
                self._digests = [record.digest]
        self._descriptor = -1
        self._is_local = False

    @property
    def compares_blocks(self) -> bool:
        return bool(self._digests)

    @property
    def count(self) -> int:
        """How many blocks there are. An empty file has one."""
        return max(1, block_digests.count_blocks(self._record.size, self._block_bytes))

    def span(self, number: int) -> tuple[int, int]:
        """Where a block begins and ends."""
        begin = number * self._block_bytes
        return begin, min(begin + self._block_bytes, self._record.size)

    def numbers(self, begin: int, end: int) -> range:
        """The numbers of the blocks that a span of the file, which is not empty, lies in."""
        return range(begin // self._block_bytes, (end - 1) // self._block_bytes + 1)

    @contextlib.contextmanager
    def opened(self, path: str, *, keeps_cached: bool = False) -> Iterator[None]:
        """The file is open meanwhile. `keeps_cached`: read it through the page cache, because it is read again soon.

        Raises OSError, and DamagedFile if it does not have its size.
        """
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size != self._record.size:
                raise DamagedFile(f"{self._record.path} has {size} bytes instead of {self._record.size}")
            self._descriptor = file.fileno()
            self._is_local = size >= self._block_bytes and direct_io.enable(self._descriptor)
            if self._is_local and (keeps_cached or direct_io.is_cached(self._descriptor, size)):
                direct_io.disable(self._descriptor)
            yield

    def blocks(self, numbers: Iterable[int], place: Callable[[int], memoryview]) -> Iterator[memoryview]:
        """The content of each block, in their order, once it was read to the memory that `place` gives for it, and
        compared. That memory is aligned for `direct_io`, and has its padded length.

        Raises OSError and DamagedFile.
        """
        # With one reader the digests are computed by the caller's thread, while the next block is read.
        in_readers = self._is_local
        with WorkerThreads(READ_THREADS if in_readers else 1, "perdure-read") as readers:
            fetch = partial(self._fetch, place=place, compares=in_readers)
            for number, block in readers.map(fetch, numbers, ahead=MAX_PENDING_BLOCKS):
                if not in_readers:
                    self._compare(number, block)
                yield block

    def scan(self, numbers: Iterable[int], use: Callable[[int, memoryview], object]) -> None:
        """Call `use` with the beginning and the content of each block, once it was read and compared: in any order,
        from several threads at once. The content is valid during the call. At most MAX_PENDING_BLOCKS are in memory.

        Raises OSError, DamagedFile, and what `use` raises.
        """
        in_readers = self._is_local
        buffers = BufferPool(self._block_bytes)

        def finish(number: int, block: memoryview, buffer: memoryview) -> None:
            self._compare(number, block)
            use(self.span(number)[0], block)
            buffers.give_back(buffer)

        def fetch(number: int) -> tuple[int, memoryview, memoryview]:
            buffer = buffers.take()
            _, block = self._fetch(number, place=lambda _: buffer, compares=False)
            if in_readers:
                finish(number, block, buffer)
            return number, block, buffer

        with WorkerThreads(READ_THREADS if in_readers else 1, "perdure-read") as readers:
            for fetched in readers.map(fetch, numbers, ahead=MAX_PENDING_BLOCKS):
                if not in_readers:
                    finish(*fetched)

    def _fetch(self, number: int, *, place: Callable[[int], memoryview], compares: bool) -> tuple[int, memoryview]:
        begin, end = self.span(number)
        block = place(number)
        count = min(direct_io.read_at(self._descriptor, block, begin), end - begin)
        if count != end - begin:
            raise DamagedFile(f"{self._record.path} has {begin + count} bytes instead of {self._record.size}")
        if compares:
            self._compare(number, block[:count])
        return number, block[:count]

    def _compare(self, number: int, block: memoryview) -> None:
        if self._digests and block_digests.hash_block(self._record.algorithm, block) != self._digests[number]:
            begin, end = self.span(number)
            where = f" between {begin} and {end}" if self.count > 1 else ""
            raise DamagedFile(f"{self._record.path} differs from what was saved{where} ({self._record.algorithm})")


def _padded(size: int) -> int:
    return -(-size // direct_io.ALIGNMENT) * direct_io.ALIGNMENT
