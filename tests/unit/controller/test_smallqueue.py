"""A small queue does what asyncio's does, for one reader."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from perdure.controller.smallqueue import SmallQueue


@given(st.lists(st.lists(st.integers(), max_size=5), max_size=8))
def test_what_is_put_comes_out_in_order_whenever_the_reader_waits(bunches: list[list[int]]) -> None:
    async def whole() -> list[int]:
        queue: SmallQueue[int] = SmallQueue()
        wanted = sum(map(len, bunches))

        async def read() -> list[int]:
            return [await queue.get() for _ in range(wanted)]

        reader = asyncio.create_task(read())
        for bunch in bunches:
            for item in bunch:
                queue.put_nowait(item)
            await asyncio.sleep(0)
        return await reader

    assert asyncio.run(whole()) == [item for bunch in bunches for item in bunch]


def test_a_reader_that_is_cancelled_takes_nothing_with_it() -> None:
    async def whole() -> tuple[int, bool, str, bool]:
        queue: SmallQueue[str] = SmallQueue()
        reader = asyncio.create_task(queue.get())
        await asyncio.sleep(0)
        queue.put_nowait("word")
        reader.cancel()
        await asyncio.wait([reader])
        return queue.qsize(), queue.empty(), await queue.get(), queue.empty()

    assert asyncio.run(whole()) == (1, False, "word", True)
