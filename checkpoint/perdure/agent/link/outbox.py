"""The node's report and notices, and which of them wait to be sent.

`Outbox` never blocks on the network: the supervisor changes the report, the channel's thread sends it. Every change is
sent once per connection, in order; a new connection begins with the whole report and every notice.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from perdure.agent import VERSION
from perdure.agent.notices.notice import Notice


@dataclass(frozen=True)
class Report:
    """The node's report, as docs/reference/agent-protocol.md defines it."""

    phase: str = "booted"
    exit_code: int | None = None
    failed_stage: str | None = None
    interrupted: bool = False
    mount_lost: bool = False
    message: str = ""
    ip: str = ""
    mounts: list[dict[str, Any]] = field(default_factory=list)
    slots: list[dict[str, Any]] | None = None  # of the jobs of a cluster on this node; None: it is no node of one


@dataclass(frozen=True)
class _ReportChange:
    """A report that was not yet sent, with the sizes of the streams when it was made."""

    report: Report
    sizes: dict[str, Any]


class Outbox:
    """The current report, the notices, and which of them were not yet sent on this connection.

    `sizes`: returns the sizes of the streams (`logs`, `checkpoints`), in the form that the protocol defines.
    """

    def __init__(self, report: Report, *, notices: Sequence[Notice], sizes: Callable[[], dict[str, Any]]) -> None:
        self._lock = threading.Lock()
        self._report = report
        self._notices = list(notices)
        self._sizes = sizes
        self._pending: list[_ReportChange | Notice] = []
        self.wake_fd, self._wake_writer = os.pipe()
        os.set_blocking(self.wake_fd, False)
        os.set_blocking(self._wake_writer, False)

    @property
    def report(self) -> Report:
        return self._report

    def update_report(self, **changes: Any) -> None:
        """Replace fields of the report; it is sent at once when any has changed."""
        with self._lock:
            changed = replace(self._report, **changes)
            if changed == self._report:
                return
            self._report = changed
            self._pending.append(_ReportChange(changed, self._sizes()))
        self.wake()

    def add_notice(self, notice: Notice) -> None:
        """Send an interruption notice now, and again at the start of every connection."""
        with self._lock:
            self._notices.append(notice)
            self._pending.append(notice)
        self.wake()

    def opening_frames(self) -> list[dict[str, Any]]:
        """How a connection begins: `hello` with the current report, then every notice."""
        with self._lock:
            self._pending.clear()
            hello: dict[str, Any] = {"type": "hello", "report": asdict(self._report), **self._sizes()}
            hello.update(agent=VERSION, at=time.time())
            return [hello, *map(_frame, self._notices)]

    def take_pending(self) -> list[dict[str, Any]]:
        """The frames to send now. They are not returned again."""
        with suppress(BlockingIOError):
            os.read(self.wake_fd, 4096)
        with self._lock:
            pending, self._pending = self._pending, []
        return [_frame(item) for item in pending]

    def wake(self) -> None:
        """Make the channel's thread call `take_pending`."""
        with suppress(BlockingIOError):  # the pipe is full of wake-ups: one more adds nothing
            os.write(self._wake_writer, b"!")


def _frame(item: _ReportChange | Notice) -> dict[str, Any]:
    if isinstance(item, _ReportChange):
        return {"type": "report", **asdict(item.report), **item.sizes}
    # The deadline is on this node's wall clock, and `at` is its time now: the controller's clock may differ.
    return {"type": "notice", **asdict(item), "at": time.time()}
