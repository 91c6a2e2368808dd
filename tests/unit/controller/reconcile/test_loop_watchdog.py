"""The watchdog: an overdue timer or event is found, also where the queue itself would not find it."""

from __future__ import annotations

from structlog.testing import capture_logs

from perdure.controller.reconcile.loop_watchdog import LIMIT_S, Watchdog
from perdure.controller.reconcile.timer_queue import TimerQueue
from perdure.controller.runtime.clock import ManualClock


class Scene:
    def __init__(self, speed: float = 1.0) -> None:
        self.clock = ManualClock()
        self.queue: TimerQueue[str, str] = TimerQueue(self.clock, speed)
        self.watchdog = Watchdog(self.queue, self.clock, speed, monotonic=self.clock.now)

    def after(self, seconds: float) -> str | None:
        self.clock.advance(seconds)
        return self.watchdog.problem()


def test_problem__names_an_overdue_timer() -> None:
    scene = Scene()
    scene.queue.schedule(scene.clock.now() + 10, "timer")
    assert scene.after(0) is None
    assert scene.after(10 + LIMIT_S) is None
    assert scene.after(2) == f"a timer has been due for {LIMIT_S + 2:.0f} s"
    scene.queue.pop_due()
    assert scene.after(2) is None


def test_problem__names_an_event_that_waits() -> None:
    scene = Scene()
    scene.queue.enqueue("first")
    assert scene.after(LIMIT_S) is None
    scene.queue.enqueue("second")
    assert scene.after(5) == f"an event has been queued for {LIMIT_S + 5:.0f} s"
    scene.queue.next(block=False)
    assert scene.after(2) is None, "the second one is young"
    scene.queue.next(block=False)
    assert scene.after(10 * LIMIT_S) is None


def test_problem__is_found_below_a_broken_heap() -> None:
    """The queue takes its timers from the top of a heap, whose order a bug may void."""
    scene = Scene()
    scene.queue.schedule(scene.clock.now(), "timer")
    scene.queue._timers.insert(0, (float("inf"), 0, "never"))
    assert scene.queue.pop_due() is None
    assert scene.after(LIMIT_S + 1) is not None


def test_problem__is_measured_in_real_time() -> None:
    scene = Scene(speed=60.0)
    scene.queue.schedule(scene.clock.now(), "timer")
    assert scene.after(30 * LIMIT_S) is None
    assert scene.after(31 * LIMIT_S) is not None


def test_check__logs_once_per_episode() -> None:
    scene = Scene()
    scene.queue.schedule(scene.clock.now(), "timer")
    with capture_logs() as lines:
        for _ in range(5):
            scene.clock.advance(LIMIT_S)
            scene.watchdog.check()
        scene.queue.pop_due()
        for _ in range(2):
            scene.clock.advance(2)
            scene.watchdog.check()
    assert [line["event"] for line in lines] == ["watchdog.overdue", "watchdog.recovered"]
