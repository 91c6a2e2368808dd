"""How often a user may call, and how often an address may fail to sign in. In memory, for one controller.

A user alone, with the controller's own token, has no limit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from perdure.controller.submit.errors import RequestRejected

BURST_S = 10.0
"""How many seconds' worth of calls may come at once, after a quiet time."""
MAX_SIGN_IN_FAILURES = 10  # of an address in a minute
_MAX_KEYS = 10_000


class TooManyRequests(RequestRejected):
    """The caller is asked to wait (429). Nothing was done."""

    def __init__(self, message: str, wait_s: float, fix: str) -> None:
        super().__init__(message, fix=fix, status=429)
        self.retry_after_s = max(1, math.ceil(wait_s))


class RateLimit:
    """Token buckets, one for each key: `per_second` calls, and up to `burst` at once. Not safe for several threads.

    `now`: seconds of a clock that is never set.
    """

    def __init__(self, per_second: float, burst: float, now: Callable[[], float] = time.monotonic) -> None:
        self._per_second = per_second
        self._burst = burst
        self._now = now
        self._buckets: dict[str, tuple[float, float]] = {}  # what was left, and when

    def wait_s(self, key: str) -> float:
        """How long the caller has to wait for the next call; 0 if it may call now."""
        return max(0.0, 1.0 - self._left(key)) / self._per_second

    def take(self, key: str) -> float:
        """`wait_s`, and count a call if it may be made now."""
        left = self._left(key)
        if left < 1.0:
            return (1.0 - left) / self._per_second
        if len(self._buckets) >= _MAX_KEYS and key not in self._buckets:
            self._forget_full()
        self._buckets[key] = left - 1.0, self._now()
        return 0.0

    def give_back(self, key: str) -> None:
        """The last call of `take` does not count."""
        if key in self._buckets:
            self._buckets[key] = self._left(key) + 1.0, self._now()

    def _left(self, key: str) -> float:
        left, at = self._buckets.get(key, (self._burst, 0.0))
        return min(self._burst, left + (self._now() - at) * self._per_second)

    def _forget_full(self) -> None:
        """Bound the memory: remove the buckets that are full again or, if there are none, all of them."""
        self._buckets = {key: bucket for key, bucket in self._buckets.items() if self._left(key) < self._burst}
        if len(self._buckets) >= _MAX_KEYS:
            self._buckets.clear()


class RateLimits:
    """The limits of the API. On the event loop. `per_second`: of each named user; None: no limit."""

    def __init__(self, per_second: float | None, now: Callable[[], float] = time.monotonic) -> None:
        self._calls = None if per_second is None else RateLimit(per_second, per_second * BURST_S, now)
        self._failures = RateLimit(MAX_SIGN_IN_FAILURES / 60.0, MAX_SIGN_IN_FAILURES, now)

    def count_call(self, user: str) -> None:
        """A named user calls. Raises TooManyRequests."""
        wait_s = 0.0 if self._calls is None else self._calls.take(user)
        if wait_s:
            fix = "call less often; limits.requests_per_second in the controller's config.yaml is the limit of a user"
            raise TooManyRequests("these are too many requests of one user", wait_s, fix)

    def check_sign_in(self, address: str) -> None:
        """Somebody tries to sign in. Raises TooManyRequests if they have failed often enough."""
        if wait_s := self._failures.wait_s(address):
            raise TooManyRequests("too many sign-ins from here have failed", wait_s, "wait a minute")

    def count_failed_sign_in(self, address: str) -> None:
        self._failures.take(address)

    def forgive_sign_in(self, address: str) -> None:
        """The sign-in that was counted last has succeeded."""
        self._failures.give_back(address)
