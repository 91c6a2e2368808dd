"""The most that a spot offer is worth to a task with time to wait."""

from __future__ import annotations

import pytest

from perdure.recovery.market.history import History, OfferObservation, with_observations
from perdure.recovery.market.view import Market, Offer
from perdure.recovery.policies.bid_price import bid_price

HOUR = 3600.0
NOW = 1000 * HOUR
PRICES = (1.0, 1.2, 2.0)
OFFERS = tuple(Offer("aws", "east", f"e{p}", "v", Market.SPOT, p, 3.0, 8, 61) for p in PRICES)


def limit(slack_h: float, history: History | None = None, last_price: float = 3.0) -> float:
    return bid_price(
        OFFERS,
        history or History(),
        NOW,
        work_s=40 * HOUR,
        time_s=(40 + slack_h) * HOUR,
        last_price=last_price,
    )


def seen(*available: bool) -> History:
    """The first offers were seen every hour for 500 hours, always or never available."""
    hours = range(1, 500)
    return with_observations(
        History(),
        (
            OfferObservation(offer.key, NOW - (500 - hour) * HOUR, available=up)
            for hour in hours
            for offer, up in zip(OFFERS, available, strict=False)
        ),
    )


def test_bid_price__falls_with_slack_from_on_demand_to_cheapest() -> None:
    limits = [limit(slack_h) for slack_h in (0, 2, 8, 20, 60, 400, 4000)]
    assert limits == sorted(limits, reverse=True)
    assert PRICES[1] < limits[0] <= 3.0
    assert limits[-1] == pytest.approx(PRICES[0], abs=0.1)


def test_bid_price__is_that_of_the_offer_which_suffices() -> None:
    assert limit(20, seen(True)) == pytest.approx(PRICES[0], abs=0.05)
    assert limit(20, seen(False, True)) == pytest.approx(PRICES[1], abs=0.1)
    assert limit(20, seen(False, False, False)) == pytest.approx(3.0, abs=0.05)


def test_bid_price__ignores_offers_above_on_demand() -> None:
    assert limit(20, seen(False, False), last_price=1.1) == pytest.approx(1.1, abs=0.02)
    assert limit(20, last_price=0.5) == 0.5
