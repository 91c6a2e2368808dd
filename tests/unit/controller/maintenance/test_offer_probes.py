"""Which offer is probed next, and the `probes` section of config.yaml."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.controller.maintenance.offer_probes import ProbeConfig, next_offer, read_probe_config
from perdure.controller.runtime.config.config_file import SettingsError
from perdure.controller.runtime.config.settings import read_settings
from perdure.recovery.market.history import History, OfferObservation, with_observation
from perdure.recovery.market.unavailable import FaultKind, UnavailableOffer
from perdure.recovery.market.view import Market, MarketView, Offer

NOW = 1_000_000.0
HOUR_S = 3600.0
CONFIG = ProbeConfig(2 * HOUR_S, ("c/r",), ("v",), 1.0)
A, B = (Offer("c", "r", zone, "v", Market.SPOT, 1.0, 3.0, 8, 61) for zone in "ab")
OTHERS = (
    Offer("c", "r2", "a", "v", Market.SPOT, 1.0, 3.0, 8, 61),
    Offer("c", "r", "a", "w", Market.SPOT, 1.0, 3.0, 8, 61),
    Offer("c", "r", "a", "v", Market.ON_DEMAND, 3.0, 3.0, 8, 61),
)


def observed(**hours_ago: float) -> History:
    """A history in which each zone was observed the given number of hours ago."""
    history = History()
    for zone, hours in hours_ago.items():
        offer = A if zone == "a" else B
        history = with_observation(history, OfferObservation(offer.key, NOW - hours * HOUR_S, available=True))
    return history


def test_next_offer__is_the_one_not_observed_for_longest() -> None:
    market = MarketView((*OTHERS, A, B), history=observed(a=2.5, b=3))
    assert next_offer(CONFIG, market, NOW) == B
    assert next_offer(CONFIG, MarketView(OTHERS), NOW) is None


def test_next_offer__skips_recently_observed_offers() -> None:
    assert next_offer(CONFIG, MarketView((A, B), history=observed(a=1, b=1.5)), NOW) is None


def test_next_offer__skips_unavailable_offers() -> None:
    unavailable = UnavailableOffer("c", NOW + 60, FaultKind.AVOID_ZONE, NOW - 9, "r", "a", "v", Market.SPOT)
    assert next_offer(CONFIG, MarketView((A,), (unavailable,)), NOW) is None


def read_config(home: Path, text: str) -> ProbeConfig | None:
    (home / "config.yaml").write_text(text)
    return read_probe_config(read_settings(home))


def test_probe_config__is_none_without_the_section(tmp_path: Path) -> None:
    assert read_config(tmp_path, "log_level: info\n") is None
    text = "probes: {interval: 2h, infra: [c/r], instance_types: [v], budget_per_day: 1}\n"
    assert read_config(tmp_path, text) == CONFIG


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("{infra: [c], instance_types: [v], budget_per_day: 1}", "probes.interval"),
        ("{interval: 2h, instance_types: [v], budget_per_day: 1}", "probes.infra"),
        ("{interval: 2h, infra: [c], instance_types: v, budget_per_day: 1}", "probes.instance_types"),
        ("{interval: 2h, infra: [c], instance_types: [v]}", "probes.budget_per_day"),
        ("{interval: 2h, infra: [c], instance_types: [v], budget_per_day: 0}", "probes.budget_per_day"),
        ("{often: 2h}", "probes.often"),
    ],
)
def test_probe_config__error_names_the_key(tmp_path: Path, text: str, where: str) -> None:
    with pytest.raises(SettingsError, match=where):
        read_config(tmp_path, f"probes: {text}\n")
