"""Which content of a file was committed: its size and its modification time, as the save saw them.

rclone keeps both: in the record of a cached file, and with the object in the bucket (to the nanosecond on S3, Google
Cloud, Azure and local stores). So they tell whether the bucket has the file that was committed, or one that an earlier
or a later save wrote under the same name.

The time is an interval. When rclone handles a close, it sets the file's time to that of the last write, which may be a
moment after close() returned: a stat in between shows an earlier time (in 1 of 10 cases, by up to 4 ms). The final time
is never earlier than the one that was seen, and never later than the moment at which it was seen. Whatever is written
after that moment has a later time.

Some files are part of many checkpoints, and grow, as logs do. A checkpoint needs only what they were at its commit; the
CRC-32 tells whether a longer file begins with that.
"""

from __future__ import annotations

import os
import time
import zlib
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, Union

MAX_GROWING_BYTES = 64 << 20  # larger files are not expected to grow
_BLOCK_BYTES = 1 << 20
_MAX_SPAN_NS = 1_000_000_000  # a file that was last written long ago needs no wide interval


class FileVersion(NamedTuple):
    """One content of a file."""

    size: int  # bytes
    earliest_ns: int  # modification time, since the epoch
    latest_ns: int
    crc32: int = -1  # of the content; -1 if it was not computed, because the file is not expected to grow

    @classmethod
    def from_stat(cls, status: os.stat_result) -> FileVersion:
        """Of the file that `status` describes. Call it right after the stat."""
        latest = max(status.st_mtime_ns, min(time.time_ns(), status.st_mtime_ns + _MAX_SPAN_NS))
        return cls(status.st_size, status.st_mtime_ns, latest)

    @classmethod
    def from_fields(cls, fields: Any) -> FileVersion:
        """From the four numbers in a journal; `UNKNOWN` for anything else."""
        if not isinstance(fields, (list, tuple)) or len(fields) != len(cls._fields):
            return UNKNOWN
        return cls(*fields) if all(type(number) is int for number in fields) else UNKNOWN

    def matches(self, size: int, mtime_ns: int | None) -> bool:
        """Whether a file with this size and time has this content."""
        return size == self.size and mtime_ns is not None and self.earliest_ns <= mtime_ns <= self.latest_ns

    def may_begin(self, size: int) -> bool:
        """Whether a file of this size may be this one after it has grown, as logs do, or was touched."""
        return self.crc32 >= 0 and size >= self.size

    def begins(self, path: str) -> bool:
        """Whether the file at `path` begins with this content, by its CRC-32. Raises OSError."""
        crc, left = 0, self.size
        with open(path, "rb", buffering=0) as file:
            while left > 0 and (block := file.read(min(left, _BLOCK_BYTES))):
                crc, left = zlib.crc32(block, crc), left - len(block)
        return left == 0 and crc == self.crc32

    def is_replaced_by(self, later: FileVersion) -> bool:
        """Whether `later` was certainly written after it, and is something else rather than the same file grown."""
        if UNKNOWN in (self, later) or self.latest_ns >= later.earliest_ns:
            return False
        if not self.may_begin(later.size):
            return True
        return later.size == self.size and later.crc32 != self.crc32


UNKNOWN = FileVersion(-1, 0, -1)  # matches nothing

# Paths, each with the content that is meant. None: whatever content it has, because its name is never used twice or
# because the caller means the file as it is now. Paths alone mean None for each.
Versions = Union[Iterable[str], Mapping[str, "FileVersion | None"]]


def have_replaced(new: Mapping[str, FileVersion | None], old: Mapping[str, FileVersion | None]) -> bool:
    """Whether a save has overwritten a file of an older one, whose content the bucket will then never have as a whole.

    Both map paths to what was committed.
    """
    shared = ((new[path], old[path]) for path in new.keys() & old.keys())
    return any(one is not None and other is not None and other.is_replaced_by(one) for one, other in shared)


def version_of(path: str, versions: Versions) -> FileVersion | None:
    return versions.get(path) if isinstance(versions, Mapping) else None
