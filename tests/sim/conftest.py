"""The simulation's own threads, whatever tests ran before in this process."""

from __future__ import annotations

from asyncio import events
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def _no_event_loop() -> Iterator[None]:
    """Playwright's loop keeps running in the thread of the tests, where simulated threads must not be coroutines."""
    running = events._get_running_loop()
    events._set_running_loop(None)
    yield
    events._set_running_loop(running)
