"""`Batched`: the blocking calls of node sessions, executed in batches."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from perdure.controller.nodes.io_batches import Batched
from perdure.controller.store.logs.protocol import LogWrite
from perdure.controller.store.records.agent_connections import Place


class Logs:
    def __init__(self, linger_s: float) -> None:
        self.linger_s = linger_s
        self.prepared: list[Place] = []

    def sizes(self, places: Sequence[Place]) -> list[int]:
        return [7 * rank for _, rank in places]

    def prepare(self, places: Sequence[Place]) -> None:
        self.prepared += places

    def append_all(self, writes: Sequence[LogWrite]) -> list[int]:
        return [len(write[3]) for write in writes]


class Presence:
    def mark_disconnected_all(self) -> None: ...

    def mark_connected_all(self, calls: Sequence[tuple[Place, str]]) -> list[str]:
        return [session_id for _, session_id in calls]


@pytest.mark.parametrize(("size", "linger_s", "expected_s"), [(100, 0.02, 0.02), (2**17, 0.02, 0.0), (100, 0.0, 0.0)])
def test_log_writes__linger_only_while_they_are_small(size: int, linger_s: float, expected_s: float) -> None:
    logs: Any = Logs(linger_s)
    presence: Any = Presence()
    assert Batched(logs, presence)._linger_s([((1, 0, 1), 0, 0, b"x" * size)]) == expected_s


def test_connects__prepare_the_logs_that_are_empty() -> None:
    logs: Any = Logs(0.0)
    presence: Any = Presence()
    new, old = (((1, 0, 1), 0), ((1, 0, 1), 1))

    async def connect() -> list[tuple[Any, int]]:
        batched = Batched(logs, presence)
        return [await batched.mark_connected(place, "session") for place in (new, old)]

    assert asyncio.run(connect()) == [("session", 0), ("session", 7)]
    assert logs.prepared == [new]
