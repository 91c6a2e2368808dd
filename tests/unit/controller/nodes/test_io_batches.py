"""`Batched`: the blocking calls of node sessions, executed in batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from perdure.controller.nodes.io_batches import Batched
from perdure.controller.store.logs.protocol import LogWrite


class Logs:
    def __init__(self, linger_s: float) -> None:
        self.linger_s = linger_s

    def append_all(self, writes: Sequence[LogWrite]) -> list[int]:
        return [len(write[3]) for write in writes]


class Presence:
    def mark_disconnected_all(self) -> None: ...


@pytest.mark.parametrize(("size", "linger_s", "expected_s"), [(100, 0.02, 0.02), (2**17, 0.02, 0.0), (100, 0.0, 0.0)])
def test_log_writes__linger_only_while_they_are_small(size: int, linger_s: float, expected_s: float) -> None:
    logs: Any = Logs(linger_s)
    presence: Any = Presence()
    assert Batched(logs, presence)._linger_s([((1, 0, 1), 0, 0, b"x" * size)]) == expected_s
