"""What decides for a task that names no strategy."""

from __future__ import annotations

from perdure.recovery.history import History, Sighting, learn
from perdure.recovery.job import TaskView
from perdure.recovery.market import Market, MarketView, Offer
from perdure.recovery.needs import Need
from perdure.recovery.policies.usual import usual_strategy

NOW = 1_000_000.0
DAY_S = 86400.0
PRICES = {"a": 1.0, "b": 2.0, "c": 3.0, "d": 4.0}
SPOT = [Offer("c", "r", zone, "v", Market.SPOT, price, 3.0, 8, 61) for zone, price in PRICES.items()]


def chosen(seen: dict[str, float], offers: list[Offer] = SPOT, *, use_spot: bool = True) -> str:
    """With the zones of `seen` seen so many days ago."""
    history = History()
    for offer in offers:
        if offer.zone in seen:
            history = learn(history, Sighting(offer.key, NOW - seen[offer.zone] * DAY_S, available=False))
    task = TaskView(0, (Need(use_spot=use_spot),))
    return usual_strategy(task, MarketView(tuple(offers), history=history), NOW)[0]


def test_value_once_the_three_cheapest_were_seen() -> None:
    assert chosen({}) == "CHEAPEST"
    assert chosen({"a": 0, "b": 0}) == "CHEAPEST"
    assert chosen({"a": 0, "b": 0, "d": 0}) == "CHEAPEST"
    assert chosen({"a": 0, "b": 0, "c": 0}) == "VALUE"


def test_what_was_seen_long_ago_does_not_count() -> None:
    assert chosen({"a": 2.9, "b": 0, "c": 0}) == "VALUE"
    assert chosen({"a": 3.1, "b": 0, "c": 0}) == "CHEAPEST"


def test_where_fewer_fit_all_have_to_have_been_seen() -> None:
    assert chosen({"a": 0}, SPOT[:1]) == "VALUE"
    assert chosen({"a": 0}, SPOT[:2]) == "CHEAPEST"


def test_a_task_of_on_demand_machines_has_nothing_to_weigh() -> None:
    assert chosen({"a": 0, "b": 0, "c": 0}, use_spot=False) == "CHEAPEST"
