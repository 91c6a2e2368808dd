"""The state that this node must reach: the controller's directive, the interruption notice, and the deadline of both.

Directives only move forward. A final notice turns into a drain when the controller does not reply within
`NOTICE_REPLY_TIMEOUT_S`. Every change is on disk before anything acts on it. `supervisor` acts on it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from perdure.agent import clock
from perdure.agent.notices.notice import Notice
from perdure.agent.state_file import Directive, State, StateFile

NOTICE_REPLY_TIMEOUT_S = 1.0
POLL_S = 0.02
T = TypeVar("T")


class StopNow(Exception):
    """Kill everything and end."""


class DrainNow(Exception):
    """End the workload gracefully."""


class ReviseNow(Exception):
    """End the workload, and run a newer revision of the node spec."""


class DesiredState:
    """Changed by the threads of the channel and of the notices; read by the supervisor's.

    `revision`: of the node spec that runs here.
    """

    def __init__(self, file: StateFile, *, log: Callable[[str], None], revision: int = 0) -> None:
        self._file = file
        self._log = log
        self._revision = revision
        self._changed = threading.Condition()
        self._notice_received_at = time.monotonic()
        self._is_revoked = False

    @property
    def state(self) -> State:
        return self._file.state

    def update(self, **changes: Any) -> None:
        """Change fields of the stored state."""
        with self._changed:
            self._file.update(**changes)

    def apply_directive(self, raw: dict[str, Any]) -> None:
        """Take the controller's directive, which may be a repetition. Raises ValueError for an unknown target."""
        self._advance_to(Directive.parse(raw))

    def record_notice(self, notice: Notice) -> bool:
        """Record an interruption notice. Returns False when it is already recorded; a rebalance is never recorded.

        Of several notices, the earliest deadline counts.
        """
        with self._changed:
            if self.state.notice == notice:
                return False
            if notice.is_final:
                self._notice_received_at = time.monotonic()
                known = [at for at in (self.state.notice_deadline, _clock_deadline(notice)) if at is not None]
                self._file.update(notice=notice, notice_deadline=min(known, default=None))
                self._changed.notify_all()
            return True

    def record_shutdown(self, notice: Notice) -> bool:
        """Record that the machine itself is shutting down. Returns False when a notice says so with less time."""
        with self._changed:
            known, deadline = self.state.notice_deadline, _clock_deadline(notice)
            is_earlier = known is not None and deadline is not None and deadline < known
            return (self.state.notice is None or is_earlier) and self.record_notice(notice)

    def want_revision(self, revision: int) -> None:
        """The controller has a newer revision of the node spec."""
        with self._changed:
            if revision > max(self._revision, self.state.wanted_revision):
                self._log(f"revision {revision} is wanted")
                self._file.update(wanted_revision=revision)
                self._changed.notify_all()

    def revoke(self) -> None:
        """The controller rejected this node's token: nothing may run any more."""
        with self._changed:
            self._is_revoked = True
            self._changed.notify_all()

    def raise_if_interrupted(self, *, drainable: bool = True, revisable: bool = True) -> None:
        """Raise StopNow or, where the caller is `drainable`, DrainNow or ReviseNow if the node must do that.

        A notice without a reply becomes a drain here.
        """
        if self._is_notice_overdue():
            self._advance_to(replace(self.state.directive, target="drain", deadline=None, reason="notice"))
        if self._is_revoked or self.state.directive.reaches("stop"):
            raise StopNow
        if drainable and self.state.directive.reaches("drain"):
            raise DrainNow
        if drainable and revisable and self.state.wanted_revision > self._revision:
            raise ReviseNow

    def _is_notice_overdue(self) -> bool:
        """Whether there is a final notice that the controller has not answered with a drain in time."""
        if self.state.notice is None or self.state.directive.reaches("drain"):
            return False
        return time.monotonic() - self._notice_received_at >= NOTICE_REPLY_TIMEOUT_S

    def wait_for(self, probe: Callable[[], T], *, drainable: bool = True, revisable: bool = True) -> T:
        """Wait until `probe` returns a true value, and return that. Raises as `raise_if_interrupted`.

        When both happen at the same moment, the interruption wins.
        """
        while True:
            self.raise_if_interrupted(drainable=drainable, revisable=revisable)
            value = probe()
            if value:
                return value
            with self._changed:
                self._changed.wait(POLL_S)

    def deadline(self, drain_s: float) -> float | None:
        """When a drain must be over (time of `clock`): the earliest known deadline. None while there is no drain."""
        state = self.state
        if not state.directive.reaches("drain"):
            return None
        deadlines = [at for at in (state.directive.deadline, state.notice_deadline) if at is not None]
        assert state.drain_started_at is not None
        return min(deadlines) if deadlines else state.drain_started_at + drain_s

    def _advance_to(self, directive: Directive) -> None:
        with self._changed:
            next_directive = self.state.directive.followed_by(directive)
            if next_directive != self.state.directive:
                target, deadline, reason = next_directive.target, next_directive.deadline, next_directive.reason
                self._log(f"directive: {target}, deadline {deadline}, reason {reason!r}")
                began = clock.now() if next_directive.reaches("drain") else None
                self._file.update(directive=next_directive, drain_started_at=self.state.drain_started_at or began)
                self._changed.notify_all()


def _clock_deadline(notice: Notice) -> float | None:
    """The deadline of `notice` as a time of `clock`."""
    return None if notice.deadline is None else clock.from_wall(notice.deadline)
