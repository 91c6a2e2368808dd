"""When a file is tried again that could not be uploaded."""

from __future__ import annotations

import time

MAX_DELAY_S = 30.0


class RetryDelay:
    """A delay that doubles with every failure."""

    def __init__(self, delay_s: float) -> None:
        self._due_at, self._delay_s = time.monotonic() + delay_s, delay_s

    @classmethod
    def after(cls, before: RetryDelay | None) -> RetryDelay:
        """The delay after one more failure. `before`: that of the failures so far, or None."""
        return cls(1.0 if before is None else min(MAX_DELAY_S, 2 * before._delay_s))

    def is_due(self) -> bool:
        return time.monotonic() >= self._due_at
