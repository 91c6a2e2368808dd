"""The log of a proxy: kept bounded, and read for how long its requests took, which HAProxy counts nowhere."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from perdure.controller.api.serve.haproxy_config import LOG_FIELDS
from perdure.controller.maintenance.serve.proxy_state import RequestTimes

MAX_BYTES = 8 * 1024 * 1024
MAX_READ_BYTES = 256 * 1024
"""Of a burst, the newest lines: some thousand requests per second say as much as all of them."""
_TOTAL, _FIRST = LOG_FIELDS.index("%Ta"), LOG_FIELDS.index("%Tr")


class ProxyLogFile:
    """What is in the file before is not read again."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._offset = self._size()

    def read_new(self) -> list[RequestTimes]:
        """The requests that have ended since the last call; of many, the newest ones."""
        size = self._size()
        if size < self._offset:  # it was trimmed
            self._offset = 0
        start = max(self._offset, size - MAX_READ_BYTES)
        if start >= size:
            return []
        try:
            with self.path.open("rb") as file:
                file.seek(start)
                data = file.read(size - start)
        except OSError:
            return []
        whole = data.rfind(b"\n") + 1
        is_cut = start > self._offset
        self._offset = start + whole
        lines = data[:whole].splitlines()
        return list(_times(lines[1:] if is_cut else lines))

    def trim(self) -> None:
        """The older half goes into a second file."""
        with suppress(OSError):
            if self.path.stat().st_size > MAX_BYTES:
                shutil.copyfile(self.path, self.path.with_suffix(".log.1"))
                os.truncate(self.path, 0)  # it is opened for appending
                self._offset = 0

    def _size(self) -> int:
        try:
            return self.path.stat().st_size
        except OSError:
            return 0


def _times(lines: list[bytes]) -> Iterator[RequestTimes]:
    for line in lines:
        fields = line.split()
        if len(fields) != len(LOG_FIELDS):
            continue  # HAProxy's own words
        with suppress(ValueError):
            total_ms, first_ms = int(fields[_TOTAL]), int(fields[_FIRST])
            yield RequestTimes(total_ms / 1000, first_ms / 1000 if first_ms >= 0 else None)
