"""How often nodes send heartbeats, and how slowly they reconnect, depends on their number."""

from __future__ import annotations

import pytest

from perdure.recovery import heartbeat_interval


@pytest.mark.parametrize(
    ("nodes", "interval_s", "spread_s"), [(1, 5.0, 0.0), (10_000, 8.0, 13.3), (1_000_000, 800.0, 60.0)]
)
def test_heartbeats__slow_down_with_the_number_of_nodes(nodes: int, interval_s: float, spread_s: float) -> None:
    assert heartbeat_interval.heartbeat_interval_s(nodes, 5.0) == interval_s
    assert heartbeat_interval.reconnect_spread_s(nodes) == pytest.approx(spread_s, abs=0.1)
