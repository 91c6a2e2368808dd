"""`IdleConnectionTimer` ends a connection on which nothing arrives, unless this side is busy."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from perdure.controller.nodes.idle_connection_timer import IdleConnectionTimer

IDLE_S = 0.02


async def connection_result(*, receives: bool = False, busy: bool = False, intervals: int = 10) -> str:
    """How a connection of `intervals` times `IDLE_S` ends: it receives data all the time, or is busy, or neither."""
    loop = asyncio.get_running_loop()
    started_at = loop.time()
    with contextlib.suppress(TimeoutError):
        async with IdleConnectionTimer(lambda: loop.time() if receives else started_at, IDLE_S) as timeout:
            timeout.suspended = busy
            await asyncio.sleep(intervals * IDLE_S)
            return "continued"
    return "timed out"


@pytest.mark.parametrize(
    ("receives", "busy", "result"),
    [(False, False, "timed out"), (True, False, "continued"), (False, True, "continued")],
)
def test_timeout__ends_only_idle_connections_that_are_not_busy(receives: bool, busy: bool, result: str) -> None:
    assert asyncio.run(connection_result(receives=receives, busy=busy)) == result


def test_shorter_time__counts_from_the_last_data() -> None:
    """The check that was due after the longer time would come an hour too late."""

    async def wait() -> None:
        received_at = asyncio.get_running_loop().time()
        async with IdleConnectionTimer(lambda: received_at, 3600.0) as timeout:
            timeout.idle_s = IDLE_S
            await asyncio.sleep(3600.0)

    with pytest.raises(TimeoutError):
        asyncio.run(wait())
