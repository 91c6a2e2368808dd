"""Large buffers, in huge pages if the kernel has them: faulting in small pages costs more than copying into them."""

from __future__ import annotations

import mmap


def large_buffer(size: int) -> memoryview:
    """`size` bytes of new memory, aligned to pages."""
    mapped = mmap.mmap(-1, max(1, size))
    if hasattr(mmap, "MADV_HUGEPAGE"):
        mapped.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(mapped)[:size]
