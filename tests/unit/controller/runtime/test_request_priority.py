"""How long background work yields to API requests."""

from __future__ import annotations

import threading
import time

import pytest

from perdure.controller.runtime.request_priority import RequestPriorityGate
from support.helpers.timing import scaled


def _work(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_yield_to_requests__returns_at_once_without_requests() -> None:
    gate = RequestPriorityGate()
    with gate:
        pass
    _work(0.05)
    started = time.monotonic()
    gate.yield_to_requests()
    assert time.monotonic() - started < 0.05


def test_yield_to_requests__waits_for_the_last_request() -> None:
    gate, entered, order = RequestPriorityGate(), threading.Event(), []

    def handle_request() -> None:
        with gate:
            entered.set()
            _work(0.01)
            order.append("handled")

    with gate:
        thread = threading.Thread(target=handle_request)
        thread.start()
        entered.wait(scaled(10.0))
    _work(0.3)
    gate.yield_to_requests()
    order.append("continued")
    thread.join()
    assert order == ["handled", "continued"]


@pytest.mark.parametrize(("worked_s", "expected_s"), [(0.02, 0.18), (0.2, 0.5)])
def test_yield_to_requests__stops_after_nine_times_the_work_or_half_a_second(
    worked_s: float, expected_s: float
) -> None:
    gate = RequestPriorityGate()
    gate.yield_to_requests()
    with gate:
        _work(worked_s)
        started = time.monotonic()
        gate.yield_to_requests()
        assert time.monotonic() - started >= expected_s - 0.005
        gate.yield_to_requests()  # returns at once: it has not worked since
