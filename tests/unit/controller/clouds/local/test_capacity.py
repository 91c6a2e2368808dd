"""Playback of a recorded market: its settings, and the capacity and prices at each time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perdure.controller.clouds.local.capacity import Playback, read_speed
from perdure.controller.clouds.local.settings import LocalSettings, SectionError
from perdure.controller.clouds.local.zones import Zones
from perdure.controller.runtime.clock import ManualClock, ScaledClock, TimeScale
from perdure.recovery.market.view import Market

GAP_S = 600
SINCE = 1_800_000_000.0


def record(folder: Path, name: str, counts: list[int], prices: list[float] | None = None) -> Path:
    info = {"instance_type": "p3", "on_demand_price": 3.0, "price": 1.0}
    document = {"metadata": {"gap_seconds": GAP_S, "price_info": info}, "data": counts}
    path = folder / f"{name}.json"
    path.write_text(json.dumps(document | ({"prices": prices} if prices else {})))
    return path


def settings(*paths: Path, **more: Any) -> LocalSettings:
    trace = {"paths": [str(path) for path in paths], "unavailable_is": 0, "speed": 60, **more}
    return LocalSettings.from_mapping({"capacity_trace": trace})


def playback(*paths: Path, **more: Any) -> Playback:
    trace = settings(*paths, **more).capacity_trace
    assert trace is not None
    return trace.playback(SINCE)


def at(tick: float) -> float:
    return SINCE + tick * GAP_S


def test_free__has_as_many_slots_as_were_counted(tmp_path: Path) -> None:
    played = playback(record(tmp_path, "us-east-1a", [2, 1, 0, 3]))
    assert played.free("us-east-1a", 2, (), at(0.5)) == [1, 2]
    assert played.free("us-east-1a", 1, (1,), at(0.5)) == [2]
    assert played.free("us-east-1a", 2, (1,), at(0.5)) is None
    assert played.preempted_at("us-east-1a", 2, at(0.5)) == at(1)
    assert played.preempted_at("us-east-1a", 1, at(0.5)) == at(2)
    assert played.free("us-east-1a", 1, (), at(2)) is None
    assert played.preempted_at("us-east-1a", 3, at(3)) == float("inf"), "the last recorded value stays"


def test_free__is_unlimited_or_empty_for_traces_of_outages(tmp_path: Path) -> None:
    played = playback(record(tmp_path, "us-east-1a", [0, 1]), unavailable_is=1)
    assert played.free("us-east-1a", 3, (1,), at(0)) == [1, 1, 1]
    assert played.preempted_at("us-east-1a", 1, at(0)) == at(1)
    assert played.free("us-east-1a", 1, (), at(1)) is None


def test_free__excludes_slots_that_end_within_the_notice(tmp_path: Path) -> None:
    played = playback(record(tmp_path, "us-east-1a", [1, 0]), notice="2m")
    assert played.free("us-east-1a", 1, (), at(1) - 121) == [1]
    assert played.free("us-east-1a", 1, (), at(1) - 119) is None


def test_playback__begins_at_the_configured_position(tmp_path: Path) -> None:
    played = playback(record(tmp_path, "us-east-1a", [0, 0, 1]), start="20m")
    assert played.free("us-east-1a", 1, (), at(0)) == [1]
    assert played.position_h(at(0)) == (pytest.approx(1 / 3), 0.5)


def test_spot_price__is_that_of_the_controllers_time(tmp_path: Path) -> None:
    path = record(tmp_path, "us-east-1a", [1, 1], [1.0, 2.0])
    world = ManualClock(SINCE)
    clock = ScaledClock(TimeScale(SINCE, 60.0), world.now)
    zones = Zones("local", settings(path), tmp_path / "none.json", clock=clock, playback=playback(path))

    def prices() -> dict[Market, float]:
        return {offer.market: offer.price_per_hour for offer in zones.offers()}

    assert prices() == {Market.SPOT: 1.0, Market.ON_DEMAND: 3.0}
    assert zones.offers() is zones.offers(), "the same list until something changes"
    world.advance(GAP_S / 60)
    assert prices() == {Market.SPOT: 2.0, Market.ON_DEMAND: 3.0}


def test_playback__converts_between_clocks() -> None:
    time_scale = TimeScale(SINCE, 600.0)
    assert time_scale.from_wall(SINCE + 1) == SINCE + 600
    assert time_scale.to_wall(time_scale.from_wall(SINCE + 7.25)) == SINCE + 7.25


@pytest.mark.parametrize(
    ("more", "where"),
    [
        ({"unavailable_is": None}, "local.capacity_trace.unavailable_is"),
        ({"paths": []}, "local.capacity_trace.paths"),
        ({"paths": ["/nowhere"]}, "local.capacity_trace.paths"),
        ({"speed": 0}, "local.capacity_trace.speed"),
        ({"speed": 1e6}, "local.capacity_trace.speed"),
        ({"start": "soon"}, "local.capacity_trace.start"),
        ({"velocity": 1}, "local.capacity_trace.velocity"),
    ],
)
def test_read_trace__names_an_invalid_field(tmp_path: Path, more: dict[str, Any], where: str) -> None:
    path = record(tmp_path, "us-east-1a", [1])
    with pytest.raises(SectionError) as rejected:
        settings(path, **more)
    assert rejected.value.where == where


def test_read_trace__defines_the_zones() -> None:
    with pytest.raises(SectionError) as rejected:
        LocalSettings.from_mapping({"capacity_trace": {}, "zones": {"a": {"region": "r"}}})
    assert rejected.value.where == "local.zones"


def test_read_speed__is_none_without_a_trace() -> None:
    assert read_speed(None) is None
    assert read_speed({"zones": {}}) is None
    assert read_speed({"capacity_trace": {}}) == 1.0
