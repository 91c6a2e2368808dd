"""The strategy of a task that names none."""

from __future__ import annotations

from perdure.recovery.job import TaskView
from perdure.recovery.market.history import History, OfferObservation, with_observation
from perdure.recovery.market.requirements import MachineRequirement
from perdure.recovery.market.view import Market, MarketView, Offer
from perdure.recovery.policies.unnamed_strategy import default_strategy

NOW = 1_000_000.0
DAY_S = 86400.0
PRICES = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0}
SPOT = [Offer("c", "r", zone, "v", Market.SPOT, price, 3.0, 8, 61) for zone, price in PRICES.items()]


def chosen(seen: dict[str, float], offers: list[Offer] = SPOT, *, use_spot: bool = True) -> str:
    """The strategy, if each zone of `seen` was observed the given number of days ago."""
    history = History()
    for offer in offers:
        if offer.zone in seen:
            history = with_observation(
                history, OfferObservation(offer.key, NOW - seen[offer.zone] * DAY_S, available=False)
            )
    task = TaskView(0, (MachineRequirement(use_spot=use_spot),))
    return default_strategy(task, MarketView(tuple(offers), history=history), NOW)[0]


def test_default_strategy__is_value_if_three_cheapest_were_seen() -> None:
    assert chosen({}) == "CHEAPEST"
    assert chosen({"a": 0, "b": 0}) == "CHEAPEST"
    assert chosen({"a": 0, "b": 0, "d": 0}) == "CHEAPEST"
    assert chosen({"a": 0, "b": 0, "c": 0}) == "VALUE"


def test_default_strategy__ignores_old_observations() -> None:
    assert chosen({"a": 2.9, "b": 0, "c": 0}) == "VALUE"
    assert chosen({"a": 3.1, "b": 0, "c": 0}) == "CHEAPEST"


def test_default_strategy__needs_all_if_fewer_offers_fit() -> None:
    assert chosen({"a": 0}, SPOT[:1]) == "VALUE"
    assert chosen({"a": 0}, SPOT[:2]) == "CHEAPEST"


def test_default_strategy__is_cheapest_for_on_demand() -> None:
    assert chosen({"a": 0, "b": 0, "c": 0}, use_spot=False) == "CHEAPEST"


def test_default_strategy__reason_names_what_is_missing() -> None:
    def reason(offers: list[Offer], *, use_spot: bool = True) -> str:
        task = TaskView(0, (MachineRequirement(use_spot=use_spot),))
        return default_strategy(task, MarketView(tuple(offers)), NOW)[1]

    assert reason(SPOT, use_spot=False) == "on-demand machines, because the task does not set `use_spot: true`"
    assert reason([]) == "no spot offer fits"
    needs = "the default, VALUE, needs prices seen in the last three days"
    assert reason(SPOT) == f"{needs}, and none of the 3 cheapest spot offers were observed"
    assert reason(SPOT[:1]) == f"{needs}, and the only spot offer that fits was not observed"
