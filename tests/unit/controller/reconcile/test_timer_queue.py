"""The queue of the reconcile thread, and which of its items are urgent."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from perdure.controller.reconcile import work_items
from perdure.controller.reconcile.timer_queue import JobTurns, QueueEmpty, TimerQueue
from perdure.controller.reconcile.work_items import JobEvent
from perdure.controller.runtime.clock import SystemClock
from perdure.recovery import events

_TICK = JobEvent(1)
_NOTICE = JobEvent(2, events.PreemptionNotice(task=0, generation=1, rank=0, deadline=1.0))


def test_has_urgent__from_the_arrival_of_a_notice_until_it_is_taken() -> None:
    timers: TimerQueue[JobEvent, JobEvent] = TimerQueue(SystemClock(), 1.0, work_items.is_urgent)
    timers.enqueue(_TICK)
    assert not timers.has_urgent
    timers.enqueue(_NOTICE)
    timers.enqueue(_TICK)
    urgent = []
    for _ in range(3):
        urgent.append(timers.has_urgent)
        timers.next(block=False)
    assert urgent == [True, True, False]
    with pytest.raises(QueueEmpty):
        timers.next(block=False)


def test_turns__jobs_alternate_and_each_keeps_its_order() -> None:
    turns: JobTurns[str] = JobTurns()
    for job_id, item in ((1, "a"), (1, "b"), (1, "c"), (2, "d"), (3, "e"), (2, "f")):
        turns.add(job_id, item)
    assert [turns.take(2) for _ in range(4)] == [["a", "d"], ["e", "b"], ["f", "c"], []]
    assert (len(turns), 1 in turns) == (0, False)


@pytest.mark.parametrize("at", [float("nan"), float("inf"), float("-inf")])
def test_schedule__refuses_a_time_that_is_not_finite(at: float) -> None:
    """NaN compares false with every time: the timers below it in the heap would be out of order, or hidden."""
    timers: TimerQueue[JobEvent, JobEvent] = TimerQueue(SystemClock(), 1.0)
    timers.schedule(0.0, _TICK)
    with pytest.raises(ValueError, match="cannot be due"):
        timers.schedule(at, _TICK)
    assert timers.pop_due() == (0.0, _TICK)


def test_thread__survives_exceptions() -> None:
    timers: TimerQueue[JobEvent, JobEvent] = TimerQueue(SystemClock(), 1.0)
    passes: list[int] = []

    def run_once() -> bool:
        passes.append(1)
        if len(passes) < 4:
            raise LookupError("a bug")
        return False

    with capture_logs() as lines:
        timers.start("reconcile", run_once)
        timers.stop()
    assert len(passes) == 4
    assert [(line["event"], line["thread"], line["failures"]) for line in lines] == [
        ("thread.failed", "reconcile", n) for n in (1, 2, 3)
    ]
