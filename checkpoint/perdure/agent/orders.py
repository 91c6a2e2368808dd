"""What this node has been told so far, by the controller and by its cloud, and what follows from it.

Directives only move forward. A final notice becomes a drain of its own accord when the controller does not answer it in
`UNANSWERED_S`. All of it is on disk before anybody acts on it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from perdure.agent import clock
from perdure.agent.notices import Notice
from perdure.agent.state import Directive, State, StateFile

UNANSWERED_S = 1.0
LOOK_S = 0.02
T = TypeVar("T")


class StopNow(Exception):
    """Kill everything and end."""


class DrainNow(Exception):
    """Bring the workload to its end in good order."""


class Orders:
    """Told by the channel's and the notices' threads; asked by the supervisor's."""

    def __init__(self, file: StateFile, *, log: Callable[[str], None]) -> None:
        self._file = file
        self._log = log
        self._changed = threading.Condition()
        self._noticed_at = time.monotonic()
        self._is_written_off = False

    @property
    def state(self) -> State:
        return self._file.state

    def remember(self, **changes: Any) -> None:
        """Store fields of the state."""
        with self._changed:
            self._file.change(**changes)

    def direct(self, raw: dict[str, Any]) -> None:
        """The controller's directive, new or again. Raises ValueError when it is none."""
        self._go_to(Directive.parse(raw))

    def give_notice(self, notice: Notice) -> bool:
        """The cloud's word. False when it was known before."""
        with self._changed:
            if self.state.notice == notice.to_json():
                return False
            if notice.is_final:
                self._noticed_at = time.monotonic()
                until = None if notice.deadline is None else clock.from_wall(notice.deadline)
                self._file.change(notice=notice.to_json(), notice_until=until)
                self._changed.notify_all()
            return True

    def shut_down(self, notice: Notice) -> bool:
        """The machine itself says that it goes down. False where more is known already."""
        return self.state.notice is None and self.give_notice(notice)

    def write_off(self) -> None:
        """The controller does not know this node any more."""
        with self._changed:
            self._is_written_off = True
            self._changed.notify_all()

    def look(self, *, drainable: bool = True) -> None:
        """Raise what has come: StopNow, or DrainNow if that still means something to the caller."""
        if self._is_written_off or self.state.directive.reaches("stop"):
            raise StopNow
        if self.state.directive.reaches("drain"):
            if drainable:
                raise DrainNow
        elif self.state.notice and time.monotonic() - self._noticed_at >= UNANSWERED_S:
            self._go_to(replace(self.state.directive, want="drain", deadline=None, reason="notice"))
            self.look(drainable=drainable)

    def until(self, probe: Callable[[], T], *, drainable: bool = True) -> T:
        """Wait for `probe` to give something true, and return it.

        Raises what has come first: a drain and an end at the same moment are a drain.
        """
        while True:
            self.look(drainable=drainable)
            found = probe()
            if found:
                return found
            with self._changed:
                self._changed.wait(LOOK_S)

    def deadline(self, drain_s: float) -> float | None:
        """When a drain must be over (time of `clock`): the earliest of what is known; None while nothing has an end."""
        state = self.state
        if not state.directive.reaches("drain"):
            return None
        known = [at for at in (state.directive.deadline, state.notice_until) if at is not None]
        assert state.drain_began is not None
        return min(known) if known else state.drain_began + drain_s

    def _go_to(self, directive: Directive) -> None:
        with self._changed:
            following = self.state.directive.followed_by(directive)
            if following != self.state.directive:
                self._log(f"directive: {following.want}, deadline {following.deadline}, reason {following.reason!r}")
                began = clock.now() if following.reaches("drain") else None
                self._file.change(directive=following, drain_began=self.state.drain_began or began)
                self._changed.notify_all()
