"""The end of a talk with somebody silent."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from perdure.controller.patience import Patience

SILENT_S = 0.02


async def talk(*, speaks: bool = False, busy: bool = False, beats: int = 10) -> str:
    """How it ends after `beats` lengths of `SILENT_S`, in which the other side speaks all the time, or
    keeps us busy, or neither."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    with contextlib.suppress(TimeoutError):
        async with Patience(lambda: loop.time() if speaks else began, SILENT_S) as patience:
            patience.is_busy = busy
            await asyncio.sleep(beats * SILENT_S)
            return "went on"
    return "ended"


@pytest.mark.parametrize(
    ("speaks", "busy", "ends"), [(False, False, "ended"), (True, False, "went on"), (False, True, "went on")]
)
def test_only_who_is_silent_and_waited_for_is_given_up(speaks: bool, busy: bool, ends: str) -> None:
    assert asyncio.run(talk(speaks=speaks, busy=busy)) == ends
