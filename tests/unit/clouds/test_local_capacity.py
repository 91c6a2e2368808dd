"""A recorded market, played back: what can be said of it, and what it lets be bought when."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from perdure.controller.clock import ManualClock, Pace, PacedClock
from perdure.controller.clouds.local.capacity import Playback, read_speed
from perdure.controller.clouds.local.settings import LocalSettings, SettingsError
from perdure.controller.clouds.local.zones import Zones
from perdure.recovery.market import Market

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
    return trace.played(SINCE)


def at(tick: float) -> float:
    return SINCE + tick * GAP_S


def test_a_zone_has_as_many_places_as_were_counted(tmp_path: Path) -> None:
    played = playback(record(tmp_path, "us-east-1a", [2, 1, 0, 3]))
    assert played.free("us-east-1a", 2, (), at(0.5)) == [1, 2]
    assert played.free("us-east-1a", 1, (1,), at(0.5)) == [2]
    assert played.free("us-east-1a", 2, (1,), at(0.5)) is None
    assert played.taken_at("us-east-1a", 2, at(0.5)) == at(1)
    assert played.taken_at("us-east-1a", 1, at(0.5)) == at(2)
    assert played.free("us-east-1a", 1, (), at(2)) is None
    assert played.taken_at("us-east-1a", 3, at(3)) == float("inf"), "what was last stands"


def test_where_only_outages_were_recorded_there_is_room_for_all_or_none(tmp_path: Path) -> None:
    played = playback(record(tmp_path, "us-east-1a", [0, 1]), unavailable_is=1)
    assert played.free("us-east-1a", 3, (1,), at(0)) == [1, 1, 1]
    assert played.taken_at("us-east-1a", 1, at(0)) == at(1)
    assert played.free("us-east-1a", 1, (), at(1)) is None


def test_a_zone_that_has_given_notice_sells_no_more(tmp_path: Path) -> None:
    played = playback(record(tmp_path, "us-east-1a", [1, 0]), notice="2m")
    assert played.free("us-east-1a", 1, (), at(1) - 121) == [1]
    assert played.free("us-east-1a", 1, (), at(1) - 119) is None


def test_playback_begins_where_it_is_told(tmp_path: Path) -> None:
    played = playback(record(tmp_path, "us-east-1a", [0, 0, 1]), start="20m")
    assert played.free("us-east-1a", 1, (), at(0)) == [1]
    assert played.at_h(at(0)) == (pytest.approx(1 / 3), 0.5)


def test_prices_are_those_of_the_moment_by_the_controllers_clock(tmp_path: Path) -> None:
    path = record(tmp_path, "us-east-1a", [1, 1], [1.0, 2.0])
    world = ManualClock(SINCE)
    clock = PacedClock(Pace(SINCE, 60.0), world.now)
    zones = Zones("local", settings(path), tmp_path / "none.json", clock=clock, playback=playback(path))

    def prices() -> dict[Market, float]:
        return {offer.market: offer.price_per_hour for offer in zones.offers()}

    assert prices() == {Market.SPOT: 1.0, Market.ON_DEMAND: 3.0}
    assert zones.offers() is zones.offers(), "one list as long as nothing changes"
    world.advance(GAP_S / 60)
    assert prices() == {Market.SPOT: 2.0, Market.ON_DEMAND: 3.0}


def test_a_pace_leads_there_and_back() -> None:
    pace = Pace(SINCE, 600.0)
    assert pace.of_world(SINCE + 1) == SINCE + 600
    assert pace.in_world(pace.of_world(SINCE + 7.25)) == SINCE + 7.25


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
def test_a_mistake_names_the_field(tmp_path: Path, more: dict[str, Any], where: str) -> None:
    path = record(tmp_path, "us-east-1a", [1])
    with pytest.raises(SettingsError) as refused:
        settings(path, **more)
    assert refused.value.where == where


def test_a_trace_brings_its_own_zones() -> None:
    with pytest.raises(SettingsError) as refused:
        LocalSettings.from_mapping({"capacity_trace": {}, "zones": {"a": {"region": "r"}}})
    assert refused.value.where == "local.zones"


def test_without_a_trace_there_is_no_speed() -> None:
    assert read_speed(None) is None
    assert read_speed({"zones": {}}) is None
    assert read_speed({"capacity_trace": {}}) == 1.0
