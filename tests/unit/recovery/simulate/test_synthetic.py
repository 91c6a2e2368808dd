"""Random markets: each kind has the property that it is named after."""

from __future__ import annotations

from statistics import mean

import pytest

from perdure.recovery.simulate import BadTrace, ZoneTrace
from perdure.recovery.simulate.synthetic import KINDS, generate, market, resampled
from unit.recovery.simulate.markets import MakeZone


def share(zone: ZoneTrace) -> float:
    return mean(count > 0 for count in zone.counts)


@pytest.mark.parametrize("kind", KINDS)
def test_market__is_the_same_for_the_same_seed(kind: str) -> None:
    first, again, other = (market(kind, days=5, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert [zone.counts for zone in first] != [zone.counts for zone in other]
    assert {len(zone.counts) for zone in first} == {len(zone.prices) for zone in first} == {5 * 288}
    assert all(0 < price <= zone.on_demand_price for zone in first for price in zone.prices)


def test_generate__reads_numbers() -> None:
    zones = generate("synthetic:regimes,zones=4,days=3,seed=7")
    assert zones == market("regimes", zones=4, days=3, seed=7)
    assert [zone.zone for zone in zones] == ["syn-1a", "syn-2a", "syn-3a", "syn-1b"]
    assert [zone.region for zone in zones] == ["syn-1", "syn-2", "syn-3", "syn-1"]


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("synthetic:", "is no market: write synthetic:KIND"),
        ("synthetic:calm", "one of steady, regimes"),
        ("synthetic:steady,hours=3", "hours is no number of a market"),
        ("synthetic:steady,zones=0", "1 to 26 zones"),
        ("synthetic:steady,days=9999", "1 to 1000 days"),
    ],
)
def test_generate__explains_errors(text: str, complaint: str) -> None:
    with pytest.raises(BadTrace, match=complaint):
        generate(text)


def test_prices__differ_by_seven_and_dear_zones_last() -> None:
    zones = market("prices", zones=6, days=200)
    assert mean(zones[-1].prices) / mean(zones[0].prices) == pytest.approx(7, rel=0.2)
    assert share(zones[-1]) > share(zones[0]) + 0.1


def test_correlated__a_region_fails_as_one() -> None:
    """How often a zone is down while another of its region is, and while one elsewhere is."""
    zones = market("correlated", zones=6, days=200)
    first, neighbor, elsewhere = (zones[i].counts for i in (0, 3, 1))
    beside = mean(other == 0 for one, other in zip(first, neighbor, strict=True) if one == 0)
    apart = mean(other == 0 for one, other in zip(first, elsewhere, strict=True) if one == 0)
    assert beside > 2 * apart


def test_gangs__capacity_ends_machine_by_machine() -> None:
    counts = market("gangs", zones=1, days=30)[0].counts
    assert len(set(counts)) > 5


def test_scarce__capacity_is_rare() -> None:
    assert mean(map(share, market("scarce", days=200))) < 0.4 < mean(map(share, market("steady", days=200)))


def test_resampled__keeps_prices_and_pieces(zone: MakeZone) -> None:
    zones = zone("10" * 300, price=2.0), zone("1110" * 150, name="west-1a", price=4.0)
    drawn = resampled(zones, seed=3, piece_h=10)
    assert [z.zone for z in drawn] == ["east-1a", "west-1a"]
    assert [set(z.prices) for z in drawn] == [{2.0}, {4.0}]
    assert [len(z.counts) for z in drawn] == [600, 600]
    assert drawn == resampled(zones, seed=3, piece_h=10) != resampled(zones, seed=4, piece_h=10)
