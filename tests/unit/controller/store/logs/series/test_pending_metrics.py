"""What waits to be written."""

from __future__ import annotations

import math

from perdure.controller.store.logs.series.metric_series import MACHINE
from perdure.controller.store.logs.series.pending_metrics import MAX_PENDING, WRITE_INTERVAL_S, PendingMetrics

ONE, TWO = ((1, 0, 1), 0), ((2, 0, 1), 0)
USE = [0.5, *[math.nan] * (len(MACHINE) - 1)]


def test_points__are_due_after_an_interval_and_kept_until_they_are_written() -> None:
    now = 0.0
    pending = PendingMetrics(lambda: now, speed=2.0)
    pending.add(ONE, 0.0, USE, 7, {"loss": 0.25})
    assert pending.due(10) == {}
    now = 2 * WRITE_INTERVAL_S
    due = pending.due(10)
    assert due == {ONE: [(0.0, {"cpu": 0.5, "step": 7.0, ".loss": 0.25})]}
    pending.add(ONE, now, USE)
    pending.written({ONE: 1, TWO: 3})
    assert pending.due(10) == {}, "the next one waits for its turn"
    assert pending.of_job(1) == {ONE: [(now, {"cpu": 0.5})]}


def test_node_that_leaves__is_written_soon() -> None:
    pending = PendingMetrics(lambda: 1.0)
    for place in (ONE, TWO):
        pending.add(place, 1.0, USE)
    pending.make_due(TWO)
    assert set(pending.due(10)) == {TWO}
    assert set(pending.due(10, all_nodes=True)) == {ONE, TWO}
    assert len(pending.due(1, all_nodes=True)) == 1
    pending.written({TWO: 1})
    assert pending.of_job(2) == {}


def test_points__are_bounded_while_nothing_can_be_written() -> None:
    pending = PendingMetrics(lambda: 0.0)
    for second in range(1000):
        pending.add(ONE, float(second), USE)
    (points,) = pending.of_job(1).values()
    assert [points[0][0], points[-1][0], len(points)] == [1000 - MAX_PENDING, 999.0, MAX_PENDING]
