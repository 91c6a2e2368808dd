"""The files of one state: the part of a process, and those that the part refers to because several steps share them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from perdure.checkpoint.format import sampling
from perdure.checkpoint.format.manifest import FileRecord
from perdure.checkpoint.format.regular_file import open_regular
from perdure.checkpoint.load.block_compare import DamagedFile
from perdure.checkpoint.load.part_file import PartFile, Place
from perdure.checkpoint.state import container
from perdure.checkpoint.state.container import Header

T = TypeVar("T")

Span = tuple[str, int, int]  # file, begin, end


def shared_with(root: str, name: str) -> list[str]:
    """The files that the part `name` refers to, without verifying it; empty if it is not a part. Raises OSError."""
    with open_regular(os.path.join(root, name)) as file:
        size = os.fstat(file.fileno()).st_size
        try:
            count = container.header_bytes(memoryview(os.pread(file.fileno(), 8, 0)), size)
            return container.parse_header(memoryview(os.pread(file.fileno(), count, 0)), size).files
        except container.InvalidStateFile:
            return []


class StateFiles:
    """Reads them as `PartFile` reads one, and raises as it does. A file that the manifest does not list is damage."""

    def __init__(
        self, root: str, record: FileRecord, shared: Mapping[str, FileRecord], verify: str = sampling.FULL
    ) -> None:
        """`record`: of the part. `shared`: by path, what the manifest lists of files that steps share."""
        self._root, self._verify, self._shared = root, verify, shared
        self.name = record.path
        self._main = PartFile(root, record, verify)
        self._files = {"": self._main}

    @property
    def compares_blocks(self) -> bool:
        """Whether each block is compared whenever it is read. Otherwise only `verify` compares."""
        return self._main.compares_blocks

    def load_state(self) -> Any:
        """The whole state, in new memory."""
        data = {"": self._main.load_data()}
        header = self.parsed(lambda: self._parse_header(data[""]))
        for file in header.files:
            data[file] = self._file(file).load_data()
        return self.parsed(lambda: container.rebuild(header, container.restore_arrays(header, data)))

    def header(self) -> Header:
        """What the state consists of."""
        header = self._main.header()
        for one in header.arrays:
            if one.file and one.begin + one.nbytes > self._file(one.file).size:
                raise DamagedFile(f"a part of it needs {one.begin + one.nbytes} bytes of {one.file}")
        return header

    def verify(self, spans: Sequence[Span] | None = None) -> None:
        """Compare the files with their records: all of each, or at least what lies in `spans`."""
        if spans is None:
            self._main.verify()
            for name in self.header().files:
                self._file(name).verify()
            return
        for name in sorted({file for file, _, _ in spans}):
            self._file(name).verify([(begin, end) for file, begin, end in spans if file == name])

    def fill(self, places: Sequence[Place]) -> None:
        """Have each of `places` written."""
        for name in sorted({one.file for one in places}):
            self._file(name).fill([one for one in places if one.file == name])

    def parsed(self, parse: Callable[[], T]) -> T:
        """As `PartFile.parsed`."""
        return self._main.parsed(parse)

    def _file(self, name: str) -> PartFile:
        if name not in self._files:
            if name not in self._shared:
                raise DamagedFile(f"its manifest does not list {name}, which a part of it needs")
            self._files[name] = PartFile(self._root, self._shared[name], self._verify)
        return self._files[name]

    @staticmethod
    def _parse_header(data: memoryview) -> Header:
        return container.parse_header(data[: container.header_bytes(data, len(data))], len(data))
