"""Which offer is probed next, and what the section of the settings may say."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure.controller.probing import Probing, next_offer, read_probing
from perdure.controller.settings import SettingsError, read_settings
from perdure.recovery.history import History, Sighting, learn
from perdure.recovery.market import FaultKind, Market, MarketView, Offer, Refusal

NOW = 1_000_000.0
HOUR_S = 3600.0
PROBING = Probing(2 * HOUR_S, ("c/r",), ("v",), 1.0)
A, B = (Offer("c", "r", zone, "v", Market.SPOT, 1.0, 3.0, 8, 61) for zone in "ab")
OTHERS = (
    Offer("c", "r2", "a", "v", Market.SPOT, 1.0, 3.0, 8, 61),
    Offer("c", "r", "a", "w", Market.SPOT, 1.0, 3.0, 8, 61),
    Offer("c", "r", "a", "v", Market.ON_DEMAND, 3.0, 3.0, 8, 61),
)


def seen(**hours_ago: float) -> History:
    history = History()
    for zone, hours in hours_ago.items():
        offer = A if zone == "a" else B
        history = learn(history, Sighting(offer.key, NOW - hours * HOUR_S, available=True))
    return history


def test_the_one_unseen_for_longest_is_probed_and_no_other_place_machine_or_market() -> None:
    market = MarketView((*OTHERS, A, B), history=seen(a=2.5, b=3))
    assert next_offer(PROBING, market, NOW) == B
    assert next_offer(PROBING, MarketView(OTHERS), NOW) is None


def test_what_jobs_have_told_lately_is_not_probed() -> None:
    assert next_offer(PROBING, MarketView((A, B), history=seen(a=1, b=1.5)), NOW) is None


def test_what_is_being_avoided_is_not_probed() -> None:
    refusal = Refusal("c", NOW + 60, FaultKind.AVOID_ZONE, NOW - 9, "r", "a", "v", Market.SPOT)
    assert next_offer(PROBING, MarketView((A,), (refusal,)), NOW) is None


def section(home: Path, text: str) -> Probing | None:
    (home / "config.yaml").write_text(text)
    return read_probing(read_settings(home))


def test_there_are_none_unless_they_are_asked_for(tmp_path: Path) -> None:
    assert section(tmp_path, "log_level: info\n") is None
    asked = "probes: {every: 2h, infra: [c/r], instance_types: [v], budget_per_day: 1}\n"
    assert section(tmp_path, asked) == PROBING


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("{infra: [c], instance_types: [v], budget_per_day: 1}", "probes.every"),
        ("{every: 2h, instance_types: [v], budget_per_day: 1}", "probes.infra"),
        ("{every: 2h, infra: [c], instance_types: v, budget_per_day: 1}", "probes.instance_types"),
        ("{every: 2h, infra: [c], instance_types: [v]}", "probes.budget_per_day"),
        ("{every: 2h, infra: [c], instance_types: [v], budget_per_day: 0}", "probes.budget_per_day"),
        ("{often: 2h}", "probes.often"),
    ],
)
def test_a_mistake_names_its_field(tmp_path: Path, text: str, where: str) -> None:
    with pytest.raises(SettingsError, match=where):
        section(tmp_path, f"probes: {text}\n")
