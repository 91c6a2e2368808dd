"""Users first: whoever works in the background stands back while a user is being answered.

Python runs one thread at a time. A reconciler that has thousands of launches before it would take its share of each
moment in which a user waits, and the users' jobs, once they are safe, can well wait a little themselves.
"""

from __future__ import annotations

import threading
import time
from types import TracebackType

# At the worst, while users call without a pause, the background has a tenth of its time left; it comes round so often.
_TIMES = 9.0
_LONGEST_S = 0.5


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
        """Wait until nobody is being answered: nine times the processor time since the last call, or half a second, at
        most."""
        worked_s = time.thread_time() - self._worked_s
        with self._nobody_waits:
            if self._answering:
                self._nobody_waits.wait(min(_TIMES * worked_s, _LONGEST_S))
        self._worked_s = time.thread_time()
