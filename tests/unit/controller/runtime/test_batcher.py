"""`Batcher`: concurrent requests are executed together, and requests that follow soon are waited for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from perdure.controller.runtime.batcher import Batcher
from support.helpers.timing import scaled


class Pause:
    """Replaces the event on which the thread waits: the wait ends when the test says so."""

    def __init__(self) -> None:
        self.waited: list[float] = []
        self.started, self.ended = threading.Event(), threading.Event()

    def wait(self, timeout: float) -> None:
        self.waited.append(timeout)
        self.started.set()
        assert self.ended.wait(scaled(10.0))


def test_batcher__executes_requests_of_one_linger_together() -> None:
    batches: list[Sequence[int]] = []
    pause = Pause()

    def execute(requests: Sequence[int]) -> list[int]:
        batches.append(requests)
        return [one * 2 for one in requests]

    async def run() -> None:
        batcher = Batcher("test", execute, lambda requests: 3600.0 * (requests[0] < 10))
        batcher._never = pause  # type: ignore[assignment]
        assert await batcher.submit(1) == 2, "the first request does not wait"
        soon = [asyncio.create_task(batcher.submit(number)) for number in (10, 11)]
        await asyncio.to_thread(pause.started.wait, 10.0)
        soon.append(asyncio.create_task(batcher.submit(12)))
        await asyncio.sleep(0)
        pause.ended.set()
        assert await asyncio.gather(*soon) == [20, 22, 24]
        assert await batcher.submit(3) == 6, "a batch without a linger time delays nothing"

    asyncio.run(run())
    assert batches == [[1], [10, 11, 12], [3]]
    assert pause.waited == [pytest.approx(3600.0, abs=60.0)]


def test_batcher__raises_errors_where_they_belong() -> None:
    def execute(requests: Sequence[int]) -> list[int | Exception]:
        if 0 in requests:
            raise OSError("for all")
        return [ValueError("for one") if one < 0 else one for one in requests]

    async def run() -> None:
        batcher: Batcher[int, int] = Batcher("test", execute)
        with pytest.raises(OSError, match="for all"):
            await batcher.submit(0)
        with pytest.raises(ValueError, match="for one"):
            await batcher.submit(-1)
        assert await batcher.submit(1) == 1

    asyncio.run(run())


@pytest.mark.parametrize("mistake", ["too few results", "no results", "bad linger"])
def test_batcher__survives_mistakes_of_its_functions(mistake: str) -> None:
    """The caller gets an error, and the thread goes on: everything else that it serves would wait for ever."""
    broken = [True]

    def execute(requests: Sequence[int]) -> Sequence[int]:
        if broken and mistake != "bad linger":
            return None if mistake == "no results" else []  # type: ignore[return-value]
        return requests

    def linger_s(_: Sequence[int]) -> float:
        if broken and mistake == "bad linger":
            raise LookupError("a bug")
        return 0.0

    async def run() -> None:
        batcher = Batcher("test", execute, linger_s)
        if mistake == "bad linger":
            assert await batcher.submit(1) == 1
        else:
            with pytest.raises((RuntimeError, TypeError)):
                await batcher.submit(1)
        broken.clear()
        assert await batcher.submit(2) == 2

    asyncio.run(asyncio.wait_for(run(), scaled(20)))
