"""The queue of the reconcile thread, and which of its items are urgent."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from perdure.controller.reconcile import work_items
from perdure.controller.reconcile.event_queue import EventQueue, QueueEmpty
from perdure.controller.reconcile.work_items import JobEvent
from perdure.controller.runtime.clock import SystemClock
from perdure.recovery import events

_TICK = JobEvent(1)
_NOTICE = JobEvent(2, events.PreemptionNotice(task=0, generation=1, rank=0, deadline=1.0))


def test_has_urgent__from_the_arrival_of_a_notice_until_it_is_taken() -> None:
    event_queue: EventQueue[JobEvent, JobEvent] = EventQueue(SystemClock(), 1.0, work_items.is_urgent)
    event_queue.enqueue(_TICK)
    assert not event_queue.has_urgent
    event_queue.enqueue(_NOTICE)
    event_queue.enqueue(_TICK)
    urgent = []
    for _ in range(3):
        urgent.append(event_queue.has_urgent)
        event_queue.next(block=False)
    assert urgent == [True, True, False]
    with pytest.raises(QueueEmpty):
        event_queue.next(block=False)


def test_has_urgent__does_not_count_requeued_items() -> None:
    event_queue: EventQueue[JobEvent, JobEvent] = EventQueue(SystemClock(), 1.0, work_items.is_urgent)
    event_queue.enqueue(_NOTICE)
    taken = event_queue.next(block=False)
    assert taken is not None
    event_queue.requeue([taken])
    assert (event_queue.has_urgent, event_queue.next(block=False), event_queue.has_urgent) == (False, _NOTICE, False)


@pytest.mark.parametrize("at", [float("nan"), float("inf"), float("-inf")])
def test_schedule__refuses_a_time_that_is_not_finite(at: float) -> None:
    """NaN compares false with every time: the timers below it in the heap would be out of order, or hidden."""
    event_queue: EventQueue[JobEvent, JobEvent] = EventQueue(SystemClock(), 1.0)
    event_queue.schedule(0.0, _TICK)
    with pytest.raises(ValueError, match="cannot be due"):
        event_queue.schedule(at, _TICK)
    assert event_queue.pop_due() == (0.0, _TICK)


def test_thread__survives_exceptions() -> None:
    event_queue: EventQueue[JobEvent, JobEvent] = EventQueue(SystemClock(), 1.0)
    passes: list[int] = []

    def run_once() -> bool:
        passes.append(1)
        if len(passes) < 4:
            raise LookupError("a bug")
        return False

    with capture_logs() as lines:
        event_queue.start("reconcile", run_once)
        event_queue.stop()
    assert len(passes) == 4
    assert [(line["event"], line["thread"], line["failures"]) for line in lines] == [
        ("thread.failed", "reconcile", n) for n in (1, 2, 3)
    ]
