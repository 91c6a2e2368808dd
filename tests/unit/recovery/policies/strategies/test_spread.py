"""SPREAD: machines of one service go to different zones."""

from __future__ import annotations

from perdure.recovery.job import Recovery, TaskView
from perdure.recovery.market.cooldown import unavailable_after_launch, unavailable_after_preemption
from perdure.recovery.market.history import History, OfferObservation, with_observation, with_observations
from perdure.recovery.market.offers import Market, Offer
from perdure.recovery.market.requirements import MachineRequirement
from perdure.recovery.market.unavailable import FaultKind, UnavailableOffer
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


def replica_choice(history: History, *taken: str, unavailable: tuple[UnavailableOffer, ...] = ()) -> Offer | None:
    recovery = Recovery(recovers=False, taken_zones=taken)
    task = TaskView(0, (MachineRequirement(use_spot=True),), recovery=recovery)
    choice = spread(task, MarketView((A, B, C), unavailable=unavailable, history=history), NOW)
    return choice.offer if isinstance(choice, Place) else None


def seen(*observed: tuple[Offer, float, bool]) -> History:
    """What was observed of offers, so many seconds ago."""
    return with_observations(
        History(), [OfferObservation(one.key, NOW - ago, available=yes) for one, ago, yes in observed]
    )


def test_spread__shares_the_zone_with_the_most_replicas() -> None:
    """With one replica more than needed, a service is complete without any zone that has one."""
    history = seen((A, 60, True), (B, 60, True), (C, 60, False))
    assert replica_choice(history, "east-1a", "east-1b", "east-1b") == B
    assert replica_choice(history, "east-1a", "east-1a", "east-1b") == A


def test_spread__of_a_replica_tries_zones_again_before_all_share_the_last_one() -> None:
    """It tries those last that had no capacity a moment ago."""
    lost = [unavailable_after_preemption(one, NOW - ago) for one, ago in ((B, 300), (C, 400))]
    history = seen((A, 60, True), (B, 300, False), (C, 400, False))
    assert replica_choice(history, "east-1a", unavailable=tuple(lost)) == C
    lately = [unavailable_after_preemption(one, NOW - 30) for one in (B, C)]
    assert replica_choice(history, "east-1a", unavailable=tuple(lately)) == A, "for a minute, they are avoided"


def test_spread__of_a_replica_waits_for_what_a_zone_does_not_offer() -> None:
    """Only a lack of capacity may pass sooner. Here B and C had none, and A has two replicas."""
    history = seen((A, 60, True), (B, 300, False), (C, 400, False))

    def refused(one: Offer, ago: float, retry_after_s: float | None = None) -> UnavailableOffer:
        kind = FaultKind.AVOID_ZONE
        return unavailable_after_launch(one, NOW - ago, kind=kind, retry_after_s=retry_after_s)

    def choice(of_b: UnavailableOffer, of_c: UnavailableOffer) -> Offer | None:
        return replica_choice(history, "east-1a", "east-1a", unavailable=(of_b, of_c))

    assert choice(refused(B, 170), refused(C, 175)) == C, "neither had capacity, and both are tried again"
    assert choice(refused(B, 170), refused(C, 175, 24 * 3600.0)) == B, "C does not sell it for a day"
    assert choice(refused(B, 170, 300.0), refused(C, 175, 6 * 3600.0)) == A
