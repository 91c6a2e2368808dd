"""Where a notice arrives: it becomes part of the node's desired state, then goes to the controller.

`desired_state` keeps it on the disk, and `link.outbox` holds it for `link.channel` to send. `supervisor`, which waits
on the desired state, then drains the workload and flushes its files (`drain`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from perdure.agent.lifecycle.desired_state import DesiredState
from perdure.agent.link.outbox import Outbox
from perdure.agent.notices.notice import SHUTDOWN, Notice


class NoticeIntake:
    """Every notice enters here, from the cloud's metadata service or from the machine's own shutdown. Any thread."""

    def __init__(self, desired: DesiredState, outbox: Outbox, *, drain_s: float, log: Callable[[str], None]) -> None:
        self._desired = desired
        self._outbox = outbox
        self._drain_s = drain_s
        self._log = log

    def on_notice(self, notice: Notice) -> None:
        """A notice source returned `notice`. One that is already recorded is not sent again."""
        if self._desired.record_notice(notice):
            self._outbox.add_notice(notice)

    def on_sigterm(self) -> None:
        """The machine goes down: a notice like a cloud's, with the time of a drain. Returns at once.

        The work is done on a thread, since a signal handler must not take locks.
        """
        threading.Thread(target=self._on_shutdown, name="shutdown", daemon=True).start()

    def _on_shutdown(self) -> None:
        self._log("SIGTERM: the machine goes down")
        notice = Notice(deadline=time.time() + self._drain_s, action=SHUTDOWN, source="SIGTERM")
        if self._desired.record_shutdown(notice):
            self._outbox.add_notice(notice)
