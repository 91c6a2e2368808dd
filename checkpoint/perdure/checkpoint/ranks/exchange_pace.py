"""When processes that train together exchange what only one of them may know: about twice a second.

Their clocks must not decide, because all have to exchange at the same call. So each exchange includes how long the
calls took on every process, and from that all derive the same number of calls until the next one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

INTERVAL_S = 0.5  # a notice is known to all within twice this
_MAX_GROWTH = 2  # of the calls between two exchanges: the first steps are not typical
_MAX_CALLS = 100  # between two exchanges: the next steps may be much slower than the last ones


@dataclass
class ExchangePace:
    """Counts the calls of one process. All processes call the same methods in the same order."""

    clock: Callable[[], float] = time.monotonic
    _calls: int = 0  # since the last exchange
    _until: int = 1  # how many calls lie between two exchanges
    _since: float = field(init=False)

    def __post_init__(self) -> None:
        self._since = self.clock()

    def is_due(self) -> bool:
        """Whether this call is one at which all exchange. Counts the call."""
        self._calls += 1
        return self._calls >= self._until

    def call_s(self) -> float:
        """The mean seconds between calls since the last exchange."""
        return (self.clock() - self._since) / max(1, self._calls)

    def conclude(self, all_call_s: Sequence[float]) -> None:
        """End an exchange, with the `call_s` of every process."""
        slowest_s = max(*all_call_s, 1e-6)
        self._until = max(1, min(int(INTERVAL_S / slowest_s), self._until * _MAX_GROWTH, _MAX_CALLS))
        self._calls, self._since = 0, self.clock()
