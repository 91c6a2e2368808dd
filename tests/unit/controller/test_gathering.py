"""What is asked one by one is done together, and what comes soon after is waited for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import pytest

from perdure.controller.gathering import Gathering
from perdure.controller.nodelogs import Piece
from perdure.controller.offload import Together


class Pause:
    """Stands for the event on which the thread waits until its time: that comes when the test says so."""

    def __init__(self) -> None:
        self.waited: list[float] = []
        self.has_begun, self.is_over = threading.Event(), threading.Event()

    def wait(self, timeout: float) -> None:
        self.waited.append(timeout)
        self.has_begun.set()
        assert self.is_over.wait(10.0)


def test_what_comes_in_a_pause_is_done_together_when_it_is_over() -> None:
    done: list[Sequence[int]] = []
    pause = Pause()

    def do(asked: Sequence[int]) -> list[int]:
        done.append(asked)
        return [one * 2 for one in asked]

    async def run() -> None:
        gathering = Gathering("test", do, lambda asked: 3600.0 * (asked[0] < 10))
        gathering._never = pause  # type: ignore[assignment]
        assert await gathering.ask(1) == 2, "the first waits for nothing"
        soon = [asyncio.create_task(gathering.ask(number)) for number in (10, 11)]
        await asyncio.to_thread(pause.has_begun.wait, 10.0)
        soon.append(asyncio.create_task(gathering.ask(12)))
        await asyncio.sleep(0)
        pause.is_over.set()
        assert await asyncio.gather(*soon) == [20, 22, 24]
        assert await gathering.ask(3) == 6, "after what asks for no pause there is none"

    asyncio.run(run())
    assert done == [[1], [10, 11, 12], [3]]
    assert pause.waited == [pytest.approx(3600.0, abs=60.0)]


def test_an_error_is_raised_for_whom_it_concerns() -> None:
    def do(asked: Sequence[int]) -> list[int | Exception]:
        if 0 in asked:
            raise OSError("for all")
        return [ValueError("for one") if one < 0 else one for one in asked]

    async def run() -> None:
        gathering: Gathering[int, int] = Gathering("test", do)
        with pytest.raises(OSError, match="for all"):
            await gathering.ask(0)
        with pytest.raises(ValueError, match="for one"):
            await gathering.ask(-1)
        assert await gathering.ask(1) == 1

    asyncio.run(run())


@pytest.mark.parametrize(("size", "gather_s", "pause_s"), [(100, 0.02, 0.02), (2**17, 0.02, 0.0), (100, 0.0, 0.0)])
def test_who_says_much_is_kept_busy(size: int, gather_s: float, pause_s: float) -> None:
    class Logs:
        def append_all(self, pieces: Sequence[Piece]) -> list[int]:
            return [len(piece[3]) for piece in pieces]

    class Attendance:
        def leave_all(self) -> None: ...

    logs = Logs()
    logs.gather_s = gather_s  # type: ignore[attr-defined]
    together = Together(logs, Attendance())  # type: ignore[arg-type]
    assert together._pause_s([((1, 0, 1), 0, 0, b"x" * size)]) == pause_s
