"""How often nodes report and how they spread their reconnections, so that large fleets do not overload a controller."""

from __future__ import annotations

# Every agent that is alive reconnects within this time after a controller has started, if its fleet is small.
RECONNECT_S = 8.0

# Ten thousand nodes each send a heartbeat every 8 s, so a machine that stops responding is noticed within 24 s.
_MAX_HEARTBEATS_PER_S = 1250.0
# A reconnection costs the controller 1.1 ms of CPU (docs/concepts/performance.md), and users need an answer meanwhile.
_MAX_RECONNECTS_PER_S = 750.0
_MAX_SPREAD_S = 60.0


def heartbeat_interval_s(nodes: int, min_s: float) -> float:
    """Seconds between two heartbeats of a node, when the controller serves `nodes` of them; at least `min_s`."""
    return max(min_s, nodes / _MAX_HEARTBEATS_PER_S)


def reconnect_spread_s(nodes: int) -> float:
    """Seconds over which `nodes` spread their reconnections after all of them have lost their controller."""
    return min(_MAX_SPREAD_S, nodes / _MAX_RECONNECTS_PER_S)
