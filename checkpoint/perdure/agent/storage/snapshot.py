"""A consistent copy of a file that other processes may be writing at the same time."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass

_BLOCK_BYTES = 1 << 20
_TRIES = 5  # to find the file closed and unchanged
_PAUSE_S = 0.2


@dataclass(frozen=True)
class Stamp:
    """The content of a file, as far as its size and modification time tell."""

    size: int
    mtime_ns: int

    @classmethod
    def of(cls, path: str) -> Stamp:
        """Raises OSError."""
        status = os.stat(path)
        return cls(status.st_size, status.st_mtime_ns)


def take(data: str, shown: str, target: str, pause: Callable[[float], object]) -> Stamp | None:
    """Copy a file to `target`, with its modification time; returns what was copied, or None if there is no such copy.

    `data`: where the bytes are read. `shown`: the path by which other processes have the file open. `pause` waits for
    so many seconds.

    The copy is taken while no process has the file open, if that is the case at one of several tries: then it is what
    its last writer left. A file that stays open is copied up to its size at the beginning. Every copy is compared with
    the file once more, so it is what the file, or its beginning, was at one moment. A file that keeps changing in place
    is not copied, and neither is one that is open and empty. Raises OSError.
    """
    for number in range(_TRIES):
        is_last, is_open = number == _TRIES - 1, is_opened(shown)
        if is_open and not is_last:
            pause(_PAUSE_S)
            continue
        stamp = Stamp.of(data)
        if is_open and not stamp.size:
            return None
        _copy(data, target, stamp.size)
        is_settled = is_last or (not is_opened(shown) and Stamp.of(data) == stamp)
        if is_settled and _begins_with(data, target, stamp.size):
            os.utime(target, ns=(stamp.mtime_ns, stamp.mtime_ns))
            return stamp
        pause(_PAUSE_S)
    return None


def is_opened(path: str) -> bool:
    """Whether a process that this one may inspect has the file open."""
    return any(True for _ in open_files({path}))


def open_files(paths: set[str]) -> Iterator[tuple[str, int]]:
    """Those of `paths` that are open, each with the ID of a process that has it open."""
    for descriptor in glob.iglob("/proc/[0-9]*/fd/*"):
        with suppress(OSError):
            path = os.readlink(descriptor)
            if path in paths:
                yield path, int(descriptor.split("/")[2])


def _copy(source: str, target: str, size: int) -> None:
    with open(source, "rb", buffering=0) as data, open(target, "wb", buffering=0) as copy:
        while size > 0 and (block := data.read(min(size, _BLOCK_BYTES))):
            copy.write(block)
            size -= len(block)


def _begins_with(path: str, copy: str, size: int) -> bool:
    """Whether the file begins with all of `copy`, which must have `size` bytes."""
    if os.stat(copy).st_size != size:
        return False
    with open(path, "rb", buffering=0) as data, open(copy, "rb", buffering=0) as copied:
        while block := copied.read(_BLOCK_BYTES):
            if data.read(len(block)) != block:
                return False
    return True
