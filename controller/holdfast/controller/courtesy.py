"""Users first: whoever works in the background stands back while a user is being answered.

Python runs one thread at a time. A reconciler that has thousands of launches before it would take its share of each
moment in which a user waits, and the users' jobs, once they are safe, can well wait a little themselves.
"""

from __future__ import annotations

import threading
import time
from types import TracebackType

# At the worst, while users call without a pause, the background has a quarter of its time left.
_TIMES = 3.0


class Courtesy:
    """`with courtesy:` while a user is being answered, from any thread; `give_way` by the one thread that stands back,
    between two pieces of its work."""

    def __init__(self) -> None:
        self._nobody_waits = threading.Condition()
        self._answering = 0
        self._worked_s = 0.0

    def __enter__(self) -> None:
        with self._nobody_waits:
            self._answering += 1

    def __exit__(self, _: type[BaseException] | None, __: BaseException | None, ___: TracebackType | None) -> None:
        with self._nobody_waits:
            self._answering -= 1
            if not self._answering:
                self._nobody_waits.notify_all()

    def give_way(self) -> None:
        """Wait until nobody is being answered, for up to three times the processor time since the last call."""
        worked_s = time.thread_time() - self._worked_s
        with self._nobody_waits:
            if self._answering:
                self._nobody_waits.wait(_TIMES * worked_s)
        self._worked_s = time.thread_time()
