"""Priority for users: background work yields while API requests are being handled.

Python runs one thread at a time. A reconciler with thousands of launches to decide would take its share of the time in
which a user waits for a response, and accepted jobs can wait a little.
"""

from __future__ import annotations

import threading
import time
from types import TracebackType

# While requests come without a pause, the background thread gets at least a tenth of the time, and at least two turns a
# second.
_MAX_YIELD_RATIO = 9.0
_MAX_YIELD_S = 0.5


class RequestPriorityGate:
    """Request handlers, on any thread, run in `with gate:`. One background thread calls `yield_to_requests` between two
    pieces of its work."""

    def __init__(self) -> None:
        self._idle = threading.Condition()
        self._active_requests = 0
        self._worked_s = 0.0

    def __enter__(self) -> None:
        with self._idle:
            self._active_requests += 1

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        with self._idle:
            self._active_requests -= 1
            if not self._active_requests:
                self._idle.notify_all()

    def yield_to_requests(self) -> None:
        """Wait until no request is active.

        At most nine times as long as the CPU time that the caller used since its last call, and at most half a second.
        """
        worked_s = time.thread_time() - self._worked_s
        with self._idle:
            if self._active_requests:
                self._idle.wait(min(_MAX_YIELD_RATIO * worked_s, _MAX_YIELD_S))
        self._worked_s = time.thread_time()
