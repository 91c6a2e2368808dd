"""Metrics reach the database, also when it fails at first."""

from __future__ import annotations

import pytest
from sqlalchemy.exc import OperationalError

from perdure.controller.maintenance.node_metrics_writer import BATCH_SIZE, NodeMetricsWriter
from perdure.controller.nodes.node_usage import NodeUsage
from perdure.controller.store.logs.series import node_metrics
from perdure.controller.store.logs.series.pending_metrics import WRITE_INTERVAL_S
from unit.controller.nodes.test_node_usage import BUSY, IDLE, frame
from unit.controller.world import World


def read(world: World, place: node_metrics.Place) -> dict[str, list[float]]:
    with world.database.connect() as conn:
        series = node_metrics.load(conn, [place]).get(place)
    return {} if series is None else {"at": list(series.at), **{n: list(c) for n, c in series.columns.items()}}


def test_reports__become_a_series(world: World) -> None:
    usage = NodeUsage(world.inbox, world.clock.now)
    writer, place = NodeMetricsWriter(usage.pending, world.database, world.clock), ((7, 0, 1), 0)
    began = world.clock.now()
    for _ in range(12):
        usage.on_usage(place, frame(BUSY, IDLE))
        world.clock.advance(60.0)
        writer.tick()
    series = read(world, place)
    assert 5 <= len(series["at"]) <= 10, "it is written every five minutes"
    assert series["at"][:2] == pytest.approx([began, began + 60.0])
    assert series["gpu"] == pytest.approx([0.45] * len(series["at"]))
    assert series["cpu"][0] == pytest.approx(0.5)
    usage.forget(place)
    writer.tick()
    assert len(read(world, place)["at"]) == 12, "a node that has left has nothing in memory"
    assert usage.pending.of_job(7) == {}


def test_database_that_fails__loses_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = NodeUsage(world.inbox, world.clock.now)
    writer, place = NodeMetricsWriter(usage.pending, world.database, world.clock), ((7, 0, 1), 0)
    usage.on_usage(place, frame())
    world.clock.advance(WRITE_INTERVAL_S)
    with monkeypatch.context() as broken:
        broken.setattr(node_metrics, "save_all", lambda *_: (_ for _ in ()).throw(OperationalError("", {}, OSError())))
        writer.tick()
        writer.write_all()  # ends, although nothing can be written
    assert read(world, place) == {}
    writer.tick()
    assert len(read(world, place)["at"]) == 1


def test_end_of_the_controller__writes_everything(world: World) -> None:
    usage = NodeUsage(world.inbox, world.clock.now)
    writer, count = NodeMetricsWriter(usage.pending, world.database, world.clock), BATCH_SIZE + 5
    for job in range(1, count + 1):
        usage.on_usage(((job, 0, 1), 0), frame())
    writer.tick()
    with world.database.connect() as conn:
        assert node_metrics.count_of_job(conn, 1) == 0, "it is too early"
    writer.write_all()
    with world.database.connect() as conn:
        assert sum(node_metrics.count_of_job(conn, job) for job in range(1, count + 1)) == count
