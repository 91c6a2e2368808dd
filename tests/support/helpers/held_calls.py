"""Holds back the calls of a simulated controller until a test lets them go."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Protocol

from perdure.controller.execute.call_types import CallFeedback, CloudCall


class CallMaker(Protocol):
    def run(self, call: CloudCall, /) -> CallFeedback: ...


class HasController(Protocol):
    """A simulated controller on a clock that stands still. `current`: makes its calls."""

    @property
    def current(self) -> CallMaker: ...

    def pass_time(self, seconds: float, /) -> None: ...


class HeldCalls:
    """Takes the place of the worker pools of `world`. Makes calls on request, in order."""

    def __init__(self, world: HasController) -> None:
        self.world = world
        self.calls: list[tuple[Future[CallFeedback], CloudCall]] = []

    def submit(self, call: CloudCall, /) -> Future[CallFeedback]:
        self.calls.append((Future(), call))
        return self.calls[-1][0]

    def run(self) -> None:
        """Make the calls that are held and not cancelled."""
        calls, self.calls = self.calls, []
        for future, call in calls:
            if future.set_running_or_notify_cancel():
                future.set_result(self.world.current.run(call))

    def run_for(self, seconds: int) -> None:
        """Make the held calls once a second."""
        for _ in range(seconds):
            self.run()
            self.world.pass_time(1)
