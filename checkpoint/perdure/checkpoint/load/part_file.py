"""One part of a checkpoint: all of it at once, or single arrays. No byte is handed out before it was verified."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from perdure.checkpoint.durability import status
from perdure.checkpoint.errors import CheckpointError, retry_transient
from perdure.checkpoint.format import digest, sampling
from perdure.checkpoint.format.manifest import FileRecord
from perdure.checkpoint.load.block_compare import BlockReader, DamagedFile, read_verified
from perdure.checkpoint.state import container
from perdure.checkpoint.state.buffers import copy_bytes
from perdure.checkpoint.state.container import Header
from perdure.checkpoint.state.targets import WriteAt

T = TypeVar("T")

_LENGTH_BYTES = 8
_MEMORY_SHARE = 2  # a file is kept in the page cache if it takes at most one of so many parts of the free memory


class Place(NamedTuple):
    """Where a span of a file goes."""

    begin: int
    end: int
    write: WriteAt  # called from several threads, with pieces of the span in any order
    file: str = ""  # of those of a state; empty: the one that has the tree


class PartFile:
    """A part, opened anew for each operation, since a mount may be restarted in between.

    Each operation raises DamagedFile, CheckpointUnavailable when the file cannot be read now, and CheckpointError if
    this version cannot read it although it is whole.
    """

    def __init__(self, root: str, record: FileRecord, verify: str = sampling.FULL) -> None:
        """`verify`: a mode of `sampling`."""
        self._record = record
        self._path = os.path.join(root, record.path)
        self._verify = sampling.FULL if verify == sampling.SAMPLED and not record.sample else verify
        self._data: memoryview | None = None  # all of it, if it could not be verified otherwise

    def load_data(self) -> memoryview:
        """All of the file, in new memory."""
        return self._run(lambda path: read_verified(path, self._record, self._verify))

    @property
    def size(self) -> int:
        """In bytes, by the record."""
        return self._record.size

    @property
    def compares_blocks(self) -> bool:
        """Whether each block is compared whenever it is read. Otherwise only `verify` compares."""
        return self._reader().compares_blocks

    def verify(self, spans: Sequence[tuple[int, int]] | None = None) -> None:
        """Compare the file with its record: all of it, or at least what lies in `spans`. What is read later is compared
        once more, block by block."""
        if self._verify == sampling.SIZE:
            return
        reader = self._reader()
        if reader.compares_blocks:
            is_kept = self._record.size * _MEMORY_SHARE <= _free_memory()
            numbers = _numbers(reader, [(0, self._record.size)] if spans is None else spans)
            self._run(lambda path: self._scan(path, reader, numbers, lambda *_: None, is_kept))
        elif self._verify == sampling.SAMPLED:
            sample = self._run(lambda path: sampling.hash_sample(path, self._record.algorithm, self._record.size))
            if sample != self._record.sample:
                raise DamagedFile(f"{self._record.path} differs from what was saved ({self._record.algorithm})")
        else:
            self._data = self._run(lambda path: read_verified(path, self._record, self._verify))

    def header(self) -> Header:
        """What the file holds."""
        size = self._record.size
        beginning = self._read_span(0, min(_LENGTH_BYTES, size))
        count = self.parsed(lambda: container.header_bytes(beginning, size))
        header = self._read_span(0, count)
        return self.parsed(lambda: container.parse_header(header, size))

    def fill(self, places: Sequence[Place]) -> None:
        """Have each of `places`, which do not overlap, written. If this raises, some of them may have been."""
        ordered = sorted((one for one in places if one.end > one.begin), key=lambda one: one.begin)
        if self._data is not None:
            for one in ordered:
                one.write(0, self._data[one.begin : one.end])
            return
        begins = [one.begin for one in ordered]
        reader = self._reader()

        def use(begin: int, block: memoryview) -> None:
            for one in ordered[max(0, bisect_right(begins, begin) - 1) :]:
                first, last = max(one.begin, begin), min(one.end, begin + len(block))
                if one.begin >= begin + len(block):
                    break
                if first < last:
                    one.write(first - one.begin, block[first - begin : last - begin])

        numbers = _numbers(reader, [(one.begin, one.end) for one in ordered])
        self._run(lambda path: self._scan(path, reader, numbers, use, keeps_cached=False))

    def _read_span(self, begin: int, end: int) -> memoryview:
        data = memoryview(bytearray(end - begin))
        self.fill([Place(begin, end, lambda offset, piece: copy_bytes(data[offset : offset + len(piece)], piece))])
        return data

    def _reader(self) -> BlockReader:
        try:
            return BlockReader(self._record, self._verify)
        except digest.UnknownAlgorithm:
            raise self._of_unknown_kind() from None

    @staticmethod
    def _scan(
        path: str,
        reader: BlockReader,
        numbers: Sequence[int],
        use: Callable[[int, memoryview], object],
        keeps_cached: bool,
    ) -> None:
        with reader.opened(path, keeps_cached=keeps_cached):
            reader.scan(numbers, use)

    def _run(self, operation: Callable[[str], T]) -> T:
        """`operation` on a path from which the file can be read."""
        try:
            return retry_transient(lambda: operation(status.readable_path(self._path)), self._path)
        except (FileNotFoundError, NotADirectoryError):
            raise DamagedFile(f"{self._record.path} is missing, or is not a file") from None
        except digest.UnknownAlgorithm:
            raise self._of_unknown_kind() from None

    def _of_unknown_kind(self) -> DamagedFile:
        return DamagedFile(f"{self._record.path} has a digest of an unknown kind ({self._record.algorithm})")

    def parsed(self, parse: Callable[[], T]) -> T:
        """The result of `parse`, whose InvalidStateFile becomes damage, or the error of a file that is too new."""
        try:
            return parse()
        except container.InvalidStateFile as error:
            if self._verify != sampling.FULL:  # the bytes may have changed where they were not compared
                raise DamagedFile(f"{self._record.path}: {error}") from error
            raise CheckpointError(
                f"{self._path} is as it was saved, but {error}. Load it with the version of this library that saved it."
            ) from error


def _numbers(reader: BlockReader, spans: Sequence[tuple[int, int]]) -> list[int]:
    """The numbers of the blocks that `spans` lie in."""
    return sorted({number for begin, end in spans if end > begin for number in reader.numbers(begin, end)})


def _free_memory() -> int:
    """Bytes that this machine could use for its page cache; 0 if it does not tell."""
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            line = next(line for line in file if line.startswith("MemAvailable:"))
            return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError, StopIteration):
        return 0
