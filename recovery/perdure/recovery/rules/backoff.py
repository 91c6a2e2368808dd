"""How long to wait after consecutive failed launches: exponential backoff with deterministic jitter."""

from __future__ import annotations

from zlib import crc32

# 2 ** 64 initial delays exceed any maximum, and no float overflows.
_MAX_DOUBLINGS = 64


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
