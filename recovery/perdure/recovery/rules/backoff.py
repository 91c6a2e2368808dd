"""How long a task waits: after failed launches, and after many recoveries.

Failed launches: exponential backoff with deterministic jitter. Recoveries: a leaky bucket. A job may end its own
attempts as often as it likes, for instance with false notices, and each recovery buys a machine. Half of the recoveries
that an hour allows may follow each other at once, so honest preemptions do not wait; the others come evenly spaced.
"""

from __future__ import annotations

from zlib import crc32

# 2 ** 64 initial delays exceed any maximum, and no float overflows.
_MAX_DOUBLINGS = 64

_HOUR_S = 3600.0


def delay(consecutive_refusals: int, initial_s: float, max_s: float, seed: str) -> float:
    """Seconds to wait after the `consecutive_refusals`-th failed launch; 0 after none.

    Doubles from `initial_s` up to `max_s`, less up to a half of it as `seed` decides: jobs whose launches failed at the
    same time do not retry at the same time, and one job always gets the same delay.
    """
    if consecutive_refusals <= 0:
        return 0.0
    full = min(max_s, initial_s * 2.0 ** min(consecutive_refusals - 1, _MAX_DOUBLINGS))
    share = crc32(f"{seed}:{consecutive_refusals}".encode()) / 2**32
    return full * (1 - share / 2)


def recovery_debt(debt_until: float, now: float, per_hour: int) -> float:
    """The `recovery_debt_until` of a task that recovers at `now`: each recovery adds the same time to its debt."""
    return max(debt_until, now) + _recovery_interval_s(per_hour)


def recovery_allowed_at(debt_until: float, per_hour: int) -> float:
    """From when on a task with this debt may begin another attempt: `per_hour` (at least 2) holds for every hour."""
    return debt_until - _burst(per_hour) * _recovery_interval_s(per_hour)


def _burst(per_hour: int) -> int:
    return (per_hour + 1) // 2


def _recovery_interval_s(per_hour: int) -> float:
    return _HOUR_S / (per_hour - _burst(per_hour))
