"""SPREAD: machines of one service go to different zones."""

from __future__ import annotations

from perdure.recovery.job import Recovery, TaskView
from perdure.recovery.market.history import History, OfferObservation, with_observation
from perdure.recovery.market.offers import Market, Offer
from perdure.recovery.market.requirements import MachineRequirement
from perdure.recovery.market.view import MarketView
from perdure.recovery.policies.decisions import Place
from perdure.recovery.policies.strategies.spread import spread

NOW = 1_000_000.0


def offer(zone: str, price: float) -> Offer:
    return Offer("c", zone[:-1], zone, "m", Market.SPOT, price, 3.0, 8, 61)


A, B, C = offer("east-1a", 1.0), offer("east-1b", 1.1), offer("west-1a", 1.2)


def chosen(*taken: str, history: History | None = None) -> Offer | None:
    task = TaskView(0, (MachineRequirement(use_spot=True),), recovery=Recovery(taken_zones=taken))
    choice = spread(task, MarketView((A, B, C), history=history or History()), NOW)
    return choice.offer if isinstance(choice, Place) else None


def test_spread__takes_the_cheapest_zone_without_another_replica() -> None:
    assert chosen() == A
    assert chosen("east-1a") == B
    assert chosen("east-1a", "east-1b") == C
    assert chosen("east-1a", "east-1b", "west-1a") == A, "if there is no other"


def test_spread__prefers_a_taken_zone_to_one_that_was_preempted() -> None:
    history = with_observation(History(), OfferObservation(C.key, NOW - 60, available=False))
    assert chosen("east-1a", "east-1b", history=history) == A
