"""How many calls of a cloud may run at a time: adapts to what the cloud accepts. No threads, no clock."""

from __future__ import annotations

INITIAL_CONCURRENCY = 16


class AdaptiveConcurrencyLimit:
    """A limit with slow start and AIMD (additive increase, multiplicative decrease).

    The limit doubles with every round of successful calls until the cloud first throttles; from then on it grows by
    one a round. It grows only if it was fully used. A throttled call halves it, once per group of calls that ran at
    the same time.
    """

    def __init__(self, max_limit: int, initial: int = INITIAL_CONCURRENCY) -> None:
        self.max_limit = max_limit
        self.in_flight = 0
        self.limit = min(initial, max_limit)
        self._in_slow_start = True
        self._successes = 0
        self._started = 0
        self._throttled_at = 0  # calls up to this number count as throttled already

    @property
    def has_room(self) -> bool:
        return self.in_flight < self.limit

    def start(self) -> int:
        """Count one more call in flight. Returns its number, for `finish`."""
        self.in_flight += 1
        self._started += 1
        return self._started

    def finish(self, number: int, *, is_throttled: bool) -> None:
        """End the call `number`, and adapt the limit to its result."""
        was_full = self.in_flight >= self.limit
        self.in_flight -= 1
        if is_throttled:
            if number > self._throttled_at:
                self.limit, self._in_slow_start, self._successes = max(1, self.limit // 2), False, 0
                self._throttled_at = self._started
        elif was_full:
            self._successes += 1
            if self._in_slow_start or self._successes >= self.limit:
                self.limit, self._successes = min(self.max_limit, self.limit + 1), 0
