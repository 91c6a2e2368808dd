"""A compact queue behaves like asyncio's for one reader."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from perdure.controller.runtime.compact_queue import CompactQueue


@given(st.lists(st.lists(st.integers(), max_size=5), max_size=8))
def test_compact_queue__preserves_order_whenever_the_reader_waits(batches: list[list[int]]) -> None:
    async def whole() -> list[int]:
        queue: CompactQueue[int] = CompactQueue()
        count = sum(map(len, batches))

        async def read() -> list[int]:
            return [await queue.get() for _ in range(count)]

        reader = asyncio.create_task(read())
        for batch in batches:
            for item in batch:
                queue.put_nowait(item)
            await asyncio.sleep(0)
        return await reader

    assert asyncio.run(whole()) == [item for batch in batches for item in batch]


def test_compact_queue__cancelled_reader_takes_no_item() -> None:
    async def whole() -> tuple[int, bool, str, bool]:
        queue: CompactQueue[str] = CompactQueue()
        reader = asyncio.create_task(queue.get())
        await asyncio.sleep(0)
        queue.put_nowait("word")
        reader.cancel()
        await asyncio.wait([reader])
        return queue.qsize(), queue.empty(), await queue.get(), queue.empty()

    assert asyncio.run(whole()) == (1, False, "word", True)
