"""The rows of metrics, on both databases."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine, update

from perdure.controller.store.logs.series import node_metrics
from perdure.controller.store.logs.series.metric_series import merged
from perdure.controller.store.logs.series.node_metrics import NodeMetrics


@pytest.fixture
def filled(database: Engine) -> Engine:
    """Job 1 with two attempts of two nodes, job 2 with one; written one after another."""
    places = [((1, 0, 1), 0), ((1, 0, 1), 1), ((1, 0, 2), 0), ((1, 0, 2), 1), ((2, 0, 1), 0)]
    rows = [
        node_metrics.encoded_row(place, merged(None, [(float(n), {"cpu": n / 10})]), now=float(n))
        for n, place in enumerate(places)
    ]
    with database.begin() as conn:
        node_metrics.save_all(conn, reversed(rows))
    return database


def test_series__is_written_and_replaced(filled: Engine) -> None:
    place = ((1, 0, 2), 1)
    with filled.begin() as conn:
        series = node_metrics.load(conn, [place, ((9, 0, 1), 0)])[place]
        series.add(600.0, {"cpu": 0.9, "step": 12})
        node_metrics.save_all(conn, [node_metrics.encoded_row(place, series, 600.0)])
    with filled.connect() as conn:
        again = node_metrics.load(conn, [place])[place]
        assert list(again.at) == [3.0, 600.0]
        assert again.columns["step"][-1] == 12


def test_series_of_a_job__are_those_of_the_newest_attempts(filled: Engine) -> None:
    with filled.connect() as conn:
        assert set(node_metrics.of_job(conn, 1, limit=3)) == {((1, 0, 1), 0), ((1, 0, 2), 0), ((1, 0, 2), 1)}
        assert node_metrics.count_of_job(conn, 1) == 4
        assert node_metrics.of_job(conn, 3, limit=3) == {}


def test_damaged_series__is_left_out(filled: Engine) -> None:
    with filled.begin() as conn:
        conn.execute(update(NodeMetrics).where(NodeMetrics.c.job_id == 2).values(data=b"\x07newer"))
        assert node_metrics.of_job(conn, 2, limit=3) == {}


def test_old_and_excess_series__are_deleted_the_oldest_first(filled: Engine) -> None:
    with filled.begin() as conn:
        assert node_metrics.delete_before(conn, 2.0, limit=1) == 1
        assert node_metrics.delete_before(conn, 2.0, limit=10) == 1
        assert node_metrics.delete_before(conn, 2.0, limit=10) == 0
        assert node_metrics.delete_beyond(conn, 3, limit=10) == 0
        assert node_metrics.delete_beyond(conn, 1, limit=1) == 1
        assert node_metrics.delete_beyond(conn, 1, limit=10) == 1
        assert set(node_metrics.of_job(conn, 2, limit=10)) == {((2, 0, 1), 0)}
