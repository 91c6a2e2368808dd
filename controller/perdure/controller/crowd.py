"""How nodes keep from speaking all at once: the more there are, the more slowly each gives signs of life, and the
longer they take, together, to call again after all have lost their controller."""

from __future__ import annotations

# Ten thousand nodes give a sign of life every eight seconds each: a machine that falls silent is noticed within 24.
_MOST_BEATS_PER_S = 1250.0
# A call costs the daemon 1.1 ms (docs/performance.md): users are heard in between.
_MOST_CALLS_PER_S = 750.0
_LONGEST_S = 60.0


def beat_s(nodes: int, least_s: float) -> float:
    """How often each of `nodes` gives a sign of life."""
    return max(least_s, nodes / _MOST_BEATS_PER_S)


def calls_within_s(nodes: int) -> float:
    """Over how long `nodes` spread their calls once nobody has answered."""
    return min(_LONGEST_S, nodes / _MOST_CALLS_PER_S)
