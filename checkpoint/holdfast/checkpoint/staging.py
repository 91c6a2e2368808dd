"""Copies of a program's state that a save can take its time with: one buffer, made once and used again.

Fresh memory costs more than the copy into it (every page is faulted in), so the buffer stays. Arrays on a GPU are
copied through pinned memory, all of them at once, before the call returns.
"""

from __future__ import annotations

import sys
from typing import Any

from holdfast.checkpoint.state.buffers import large_buffer
from holdfast.checkpoint.state.container import Layout
from holdfast.checkpoint.state.tree import Flat


class Staging:
    """One reused buffer. Not for use by two threads at a time."""

    def __init__(self) -> None:
        self._buffer = memoryview(b"")
        self._is_pinned = False

    def copy(self, flat: Flat, layout: Layout) -> memoryview:
        """The whole file as `layout` says, in the buffer; valid until the next call."""
        on_gpu = _torch_with_gpu_of(flat)
        data = self._of_size(layout.size, on_gpu)
        data[: len(layout.header)] = layout.header
        for number, offset, size in layout.places():
            flat.arrays[number].write(data[offset : offset + size])
        if on_gpu is not None:
            on_gpu.cuda.synchronize()
        return data

    def _of_size(self, size: int, torch: Any) -> memoryview:
        if len(self._buffer) < size or (torch is not None and not self._is_pinned):
            self._buffer = memoryview(b"")  # let go of the old one before the new one is made
            self._buffer = _pinned(torch, size) if torch is not None else large_buffer(size)
            self._is_pinned = torch is not None
        return self._buffer[:size]


def _torch_with_gpu_of(flat: Flat) -> Any:
    """The torch module if some array lies on a GPU, else None."""
    torch = sys.modules.get("torch")
    if torch is None or not any(array.kind == "torch" for array in flat.arrays):
        return None
    has_gpu = any(isinstance(value, torch.Tensor) and value.is_cuda for value in flat.kept)
    return torch if has_gpu else None


def _pinned(torch: Any, size: int) -> memoryview:
    return memoryview(torch.empty(size, dtype=torch.uint8, pin_memory=True).numpy())
