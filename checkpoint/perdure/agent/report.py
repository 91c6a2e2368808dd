"""What the node says of itself, and the frames that wait to be said.

`Outbox` never blocks on the network: the supervisor changes the report, the channel's thread sends it. Every change is
said once on a connection, in order; a new connection begins with the whole of it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from perdure.agent import VERSION


@dataclass(frozen=True)
class Report:
    """The report of docs/agent-protocol.md."""

    phase: str = "booted"
    exit_code: int | None = None
    failed_stage: str | None = None
    interrupted: bool = False
    mount_lost: bool = False
    message: str = ""
    ip: str = ""
    mounts: list[dict[str, Any]] = field(default_factory=list)


class Outbox:
    """The report, the standing notice, and what of them was not yet said on this connection.

    `sizes`: how much the streams beside it have to say, as the protocol has it (`logs`, `checkpoints`).
    """

    def __init__(self, report: Report, *, notices: list[dict[str, Any]], sizes: Callable[[], dict[str, Any]]) -> None:
        self._lock = threading.Lock()
        self._report = report
        self._notices = list(notices)
        self._sizes = sizes
        self._unsaid: list[dict[str, Any]] = []
        self.wake_fd, self._wake_writer = os.pipe()
        os.set_blocking(self.wake_fd, False)
        os.set_blocking(self._wake_writer, False)

    @property
    def report(self) -> Report:
        return self._report

    def change(self, **changes: Any) -> None:
        """Replace fields of the report; said at once when anything is new."""
        with self._lock:
            changed = replace(self._report, **changes)
            if changed == self._report:
                return
            self._report = changed
            self._unsaid.append({"type": "report", **asdict(changed), **self._sizes()})
        self.wake()

    def give_notice(self, notice: dict[str, Any]) -> None:
        """Say an interruption notice now, and again at the start of every connection."""
        with self._lock:
            self._notices.append(notice)
            self._unsaid.append(_said(notice))
        self.wake()

    def first_frames(self) -> list[dict[str, Any]]:
        """How a connection begins: `hello` with the report as it is, then the notices that stand."""
        with self._lock:
            self._unsaid.clear()
            hello: dict[str, Any] = {
                "type": "hello",
                "report": asdict(self._report),
                **self._sizes(),
            }
            hello.update(agent=VERSION, at=time.time())
            return [hello, *(_said(notice) for notice in self._notices)]

    def take(self) -> list[dict[str, Any]]:
        """The frames to say now."""
        with suppress(BlockingIOError):
            os.read(self.wake_fd, 4096)
        with self._lock:
            unsaid, self._unsaid = self._unsaid, []
            return unsaid

    def wake(self) -> None:
        """Make the channel's thread look."""
        with suppress(BlockingIOError):  # raised when the pipe is full of wake-ups: then one more adds nothing
            os.write(self._wake_writer, b"!")


def _said(notice: dict[str, Any]) -> dict[str, Any]:
    """`at`: this node's wall clock, on which the deadline is; the controller's need not agree."""
    return {"type": "notice", **notice, "at": time.time()}
