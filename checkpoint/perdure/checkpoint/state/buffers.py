"""Large buffers, in huge pages if the kernel has them: faulting in small pages costs more than copying into them."""

from __future__ import annotations

import ctypes
import mmap
from collections import deque

_MIN_MOVED_BYTES = 64 * 1024  # a smaller piece is copied before another thread could use the time


def large_buffer(size: int) -> memoryview:
    """`size` bytes of new memory, aligned to pages.

    It is private to this process. Shared memory, which `mmap` makes by default, has no huge pages (unless an
    administrator enables them), and a forked process would write into it too.
    """
    mapped = mmap.mmap(-1, max(1, size), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        mapped.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(mapped)[:size]


def address_of(data: memoryview) -> int:
    """Where the bytes of a writable view are."""
    return ctypes.addressof(ctypes.c_char.from_buffer(data)) if len(data) else 0


def copy_bytes(target: memoryview, source: memoryview) -> None:
    """Copy `source` to `target`, which has its length. A large copy lets other threads run meanwhile."""
    if source.readonly or len(source) < _MIN_MOVED_BYTES:
        target[:] = source
    else:
        ctypes.memmove(address_of(target), address_of(source), len(source))


class BufferPool:
    """Buffers of one size, which several threads take and give back. One that is missing is made."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._unused: deque[memoryview] = deque()

    def take(self) -> memoryview:
        try:
            return self._unused.pop()
        except IndexError:
            return large_buffer(self._size)

    def give_back(self, buffer: memoryview) -> None:
        self._unused.append(buffer)
