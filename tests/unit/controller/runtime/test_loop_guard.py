"""An exception ends one pass of a loop, not its thread."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from structlog.testing import capture_logs

from perdure.controller.runtime.loop_guard import LoopGuard


class Pauses:
    """Replaces the event on which the loop waits."""

    def __init__(self) -> None:
        self.waited: list[float] = []

    def wait(self, timeout: float) -> None:
        self.waited.append(timeout)


def run(guard: LoopGuard, error: BaseException | None) -> None:
    with guard:
        if error is not None:
            raise error


def test_guard__logs_each_failure_and_backs_off() -> None:
    pauses: Any = Pauses()
    guard = LoopGuard("reconcile", pauses)
    with capture_logs() as lines:
        for _ in range(12):
            run(guard, LookupError("a bug"))
        run(guard, None)
        run(guard, LookupError("another"))
    assert [(line["event"], line["thread"]) for line in lines] == [("thread.failed", "reconcile")] * 13
    assert pauses.waited[0] == pauses.waited[-1] < pauses.waited[1] < pauses.waited[11] == 5.0


def test_guard__passes_on_what_ends_a_process() -> None:
    with pytest.raises(SystemExit):
        run(LoopGuard("reconcile", threading.Event()), SystemExit())
