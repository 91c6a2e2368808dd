"""A copy of a program's state that a save writes in the background: one buffer, made once and reused.

New memory costs more than the copy into it (every page is faulted in), so the buffer is kept. Arrays on a GPU are
copied through pinned memory, all of them at once, before the call returns. Arrays in this machine's memory are copied
by several threads, since one thread cannot use the memory's full bandwidth.
"""

from __future__ import annotations

import ctypes
import os
import sys
from functools import partial
from typing import Any

from perdure.checkpoint.state.buffers import address_of, large_buffer
from perdure.checkpoint.state.container import Layout
from perdure.checkpoint.state.tree import Flat
from perdure.checkpoint.state.worker_threads import WorkerThreads

_THREADS = min(4, len(os.sched_getaffinity(0)))
_COPY_CHUNK_BYTES = 16 * 1024 * 1024
_MIN_SHARED_BYTES = 256 * 1024


class Staging:
    """One reused buffer. Not for use by two threads at a time."""

    def __init__(self) -> None:
        self._buffer = memoryview(b"")
        self._is_pinned = False

    def copy(self, flat: Flat, layout: Layout) -> memoryview:
        """Copy `flat` into the buffer, as the file that `layout` describes; valid until the next call."""
        on_gpu = _torch_with_gpu_of(flat)
        data = self._resized(layout.size, on_gpu)
        data[: len(layout.header)] = layout.header
        moves = []
        for number, offset, size in layout.places():
            array = flat.arrays[number]
            if array.address is None:
                array.write(data[offset : offset + size])
            else:
                moves.append((offset, array.address, size))
        _copy(data, moves)
        if on_gpu is not None:
            on_gpu.cuda.synchronize()
        return data

    def _resized(self, size: int, torch: Any) -> memoryview:
        if len(self._buffer) < size or (torch is not None and not self._is_pinned):
            self._buffer = memoryview(b"")  # free the old one before the new one is made
            self._buffer = _pinned(torch, size) if torch is not None else large_buffer(size)
            self._is_pinned = torch is not None
        return self._buffer[:size]


def _copy(data: memoryview, moves: list[tuple[int, int, int]]) -> None:
    """Each of `moves`: (offset in `data`, address, bytes)."""
    begin = address_of(data)
    large = [
        (begin + offset + at, address + at, min(_COPY_CHUNK_BYTES, count - at))
        for offset, address, count in moves
        if count >= _MIN_SHARED_BYTES
        for at in range(0, count, _COPY_CHUNK_BYTES)
    ]
    is_large = sum(count for _, _, count in large) > _COPY_CHUNK_BYTES
    with WorkerThreads(_THREADS if is_large else 0, "perdure-copy") as workers:
        copies = [workers.submit(partial(ctypes.memmove, *one)) for one in large]
        memmove = ctypes.memmove
        for offset, address, count in moves:  # handing a small one to a thread takes longer than copying it
            if count < _MIN_SHARED_BYTES:
                memmove(begin + offset, address, count)
        for copy in copies:
            copy.result()


def _torch_with_gpu_of(flat: Flat) -> Any:
    """The torch module if an array is on a GPU, else None."""
    torch = sys.modules.get("torch")
    if torch is None or not any(array.kind == "torch" for array in flat.arrays):
        return None
    has_gpu = any(isinstance(value, torch.Tensor) and value.is_cuda for value in flat.references)
    return torch if has_gpu else None


def _pinned(torch: Any, size: int) -> memoryview:
    return memoryview(torch.empty(size, dtype=torch.uint8, pin_memory=True).numpy())
