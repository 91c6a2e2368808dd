"""How long to wait after refusals in a row."""

from __future__ import annotations

from zlib import crc32

# 2 ** 64 first delays outlast any cap, and no float overflows.
_MOST_DOUBLINGS = 64


def delay(refused_in_a_row: int, first_s: float, cap_s: float, seed: str) -> float:
    """Seconds to wait after the `refused_in_a_row`-th refusal (1 is the first; 0 waits for nothing).

    Doubles from `first_s` up to `cap_s`, less a share of up to a half that `seed` decides: jobs that were refused
    together do not come back together, and the same job always gets the same answer.
    """
    if refused_in_a_row <= 0:
        return 0.0
    full = min(cap_s, first_s * 2.0 ** min(refused_in_a_row - 1, _MOST_DOUBLINGS))
    share = crc32(f"{seed}:{refused_in_a_row}".encode()) / 2**32
    return full * (1 - share / 2)
