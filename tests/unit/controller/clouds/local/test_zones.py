"""zones.json changes the zones while the daemon runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from perdure.controller.clouds.local.settings import LocalSettings
from perdure.controller.clouds.local.zones import Zones
from perdure.recovery.market.view import Market


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "zones.json"


@pytest.fixture
def zones(path: Path) -> Zones:
    return Zones("local", LocalSettings(), path)


def write(path: Path, text: str) -> None:
    path.with_suffix(".new").write_text(text)
    os.replace(path.with_suffix(".new"), path)


def test_zones__follow_the_file(zones: Zones, path: Path) -> None:
    assert zones.get("local-east-a").capacity is None
    write(path, '{"local-east-a": {"capacity": 0}}')
    assert zones.get("local-east-a").capacity == 0
    write(path, '{"local-east-a": {"launch_error": {"code": "InsufficientInstanceCapacity", "message": "sold out"}}}')
    assert zones.get("local-east-a").capacity is None
    assert zones.get("local-east-a").launch_error.message == "sold out"
    path.unlink()
    assert zones.get("local-east-a").launch_error is None


def test_offers__follow_the_price_factor(zones: Zones, path: Path) -> None:
    def price() -> float:
        offers = [o for o in zones.offers() if (o.zone, o.instance_type) == ("local-west-a", "local-4")]
        return next(o.price_per_hour for o in offers if o.market is Market.SPOT)

    before = price()
    write(path, '{"local-west-a": {"price_factor": 2.2}}')
    assert price() == pytest.approx(2 * before)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", "Expecting"),
        ("[]", "not a mapping"),
        ('{"nowhere": {}}', "nowhere: no such zone"),
        ('{"local-east-a": {"capacty": 0}}', "capacty"),
        ('{"local-east-a": {"capacity": "none"}}', "local-east-a.capacity"),
    ],
)
def test_zones__ignore_an_invalid_file_and_report_it(zones: Zones, path: Path, text: str, expected: str) -> None:
    write(path, '{"local-east-a": {"capacity": 3}}')
    assert zones.get("local-east-a").capacity == 3
    write(path, text)
    assert zones.get("local-east-a").capacity == 3
    assert expected in zones.problem()
    assert f"{path} is ignored: " in zones.problem()
    write(path, "{}")
    assert zones.problem() is None
    assert zones.get("local-east-a").capacity is None


def test_offers__have_distinct_prices_by_zone(zones: Zones) -> None:
    spot = [o.price_per_hour for o in zones.offers() if o.market is Market.SPOT and o.instance_type == "local-8"]
    assert spot == sorted(set(spot))


def test_zones__warn_once_per_change(zones: Zones, path: Path) -> None:
    with capture_logs() as logged:
        write(path, "{bad")
        zones.offers()
        zones.offers()
        write(path, '{"nowhere": {}}')
        zones.offers()
    assert [entry["event"] for entry in logged] == ["local_zones.invalid"] * 2
    assert "nowhere" in logged[1]["problem"]
