"""Memory: large buffers, in huge pages if the kernel has them (faulting in small pages costs more than copying into
them), and where an array of the program lies."""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections import deque
from dataclasses import dataclass
from math import prod
from typing import Any

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
    """Buffers of one size, which several threads take and give back. One that is missing is made.

    `max_unused`: how many are kept for later; None: all.
    """

    def __init__(self, size: int, max_unused: int | None = None) -> None:
        self._size, self._max_unused = size, max_unused
        self._unused: deque[memoryview] = deque()

    def take(self) -> memoryview:
        try:
            return self._unused.pop()
        except IndexError:
            return large_buffer(self._size)

    def give_back(self, buffer: memoryview) -> None:
        if self._max_unused is None or len(self._unused) < self._max_unused:
            self._unused.append(buffer)


@dataclass(frozen=True)
class Extent:
    """The memory that an array of PyTorch or NumPy lies in."""

    device: str
    begin: int  # address
    end: int
    origin: int  # the address of its first element
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # bytes
    width: int  # of an element, in bytes

    @classmethod
    def of(cls, own: Any) -> Extent | None:
        """None if the array is empty, or where it lies is not known."""
        if not prod(own.shape):
            return None
        torch = sys.modules.get("torch")
        if torch is not None and isinstance(own, torch.Tensor):
            if own.layout is not torch.strided or own.is_meta:
                return None
            width, origin, device = own.element_size(), own.data_ptr(), str(own.device)
            strides = tuple(stride * width for stride in own.stride())
        else:
            width, origin, device = own.itemsize, own.__array_interface__["data"][0], "cpu"
            strides = tuple(own.strides)
        shape = tuple(own.shape)
        reach = [(count - 1) * stride for count, stride in zip(shape, strides)]
        begin, end = origin + sum(min(0, r) for r in reach), origin + sum(max(0, r) for r in reach) + width
        return cls(device, begin, end, origin, shape, strides, width)

    @property
    def overlaps_itself(self) -> bool:
        """Whether two elements have memory in common. True also for a few unusual orders in which none have."""
        reach = self.width
        for stride, count in sorted((abs(stride), count) for stride, count in zip(self.strides, self.shape)):
            if count > 1 and stride < reach:
                return True
            reach += stride * (count - 1)
        return False

    def overlaps(self, other: Extent) -> bool:
        """Whether they have memory in common. Columns of one matrix have none, although they lie in each other."""
        if self.device != other.device or self.begin >= other.end or other.begin >= self.end:
            return False
        if self._is_dense and other._is_dense:
            return True
        numpy = sys.modules.get("numpy")
        if numpy is None:
            return False
        begin = min(self.begin, other.begin)
        marks = numpy.zeros(max(self.end, other.end) - begin, bool)

        def view(one: Extent) -> Any:
            strides = (*one.strides, 1)
            return numpy.lib.stride_tricks.as_strided(marks[one.origin - begin :], (*one.shape, one.width), strides)

        view(self)[...] = True
        return bool(view(other).any())

    @property
    def _is_dense(self) -> bool:
        return self.end - self.begin == prod(self.shape) * self.width
