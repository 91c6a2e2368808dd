"""Zones change while the daemon runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from perdure.controller.clouds.local.settings import LocalSettings
from perdure.controller.clouds.local.zones import Zones
from perdure.recovery.market import Market


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "zones.json"


@pytest.fixture
def zones(path: Path) -> Zones:
    return Zones("local", LocalSettings(), path)


def say(path: Path, text: str) -> None:
    path.with_suffix(".new").write_text(text)
    os.replace(path.with_suffix(".new"), path)


def test_a_zone_is_closed_and_opened_again(zones: Zones, path: Path) -> None:
    assert zones.get("local-east-a").capacity is None
    say(path, '{"local-east-a": {"capacity": 0}}')
    assert zones.get("local-east-a").capacity == 0
    say(path, '{"local-east-a": {"refuse": {"code": "InsufficientInstanceCapacity", "message": "sold out"}}}')
    assert zones.get("local-east-a").capacity is None
    assert zones.get("local-east-a").refuse.message == "sold out"
    path.unlink()
    assert zones.get("local-east-a").refuse is None


def test_prices_follow(zones: Zones, path: Path) -> None:
    def price() -> float:
        offers = [o for o in zones.offers() if (o.zone, o.instance_type) == ("local-west-a", "local-4")]
        return next(o.price_per_hour for o in offers if o.market is Market.SPOT)

    before = price()
    say(path, '{"local-west-a": {"price_factor": 2.2}}')
    assert price() == pytest.approx(2 * before)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "Expecting"),
        ("[]", "a mapping is needed"),
        ('{"nowhere": {}}', "nowhere: no such zone"),
        ('{"local-east-a": {"capacity": "none"}}', "local-east-a.capacity"),
    ],
)
def test_a_file_that_can_not_be_used_changes_nothing_and_is_told(
    zones: Zones, path: Path, text: str, told: str
) -> None:
    say(path, '{"local-east-a": {"capacity": 3}}')
    assert zones.get("local-east-a").capacity == 3
    say(path, text)
    assert zones.get("local-east-a").capacity == 3
    assert told in zones.problem()
    assert str(path) in zones.problem()
    say(path, "{}")
    assert zones.problem() is None
    assert zones.get("local-east-a").capacity is None


def test_the_order_by_price_is_strict_among_zones(zones: Zones) -> None:
    spot = [o.price_per_hour for o in zones.offers() if o.market is Market.SPOT and o.instance_type == "local-8"]
    assert spot == sorted(set(spot))
