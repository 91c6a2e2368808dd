"""The most that spot is worth to a task that has time to wait for a cheaper offer.

If it were known for what share of the remaining time each offer will be available, the least cost would be that of a
linear program: use the cheapest offer while it is available, the next one while only that is, and so on, up to the
offer with which the work just fits into the time. No dearer offer would ever be used, nor would the task ever wait
while a cheaper one is available. Which offer is that last one depends on the shares. They are uncertain, so the limit
is its expected price: the mean of the program's dual price. Airlines sell seats by such bid prices (Talluri and van
Ryzin, "A Randomized Linear Programming Method for Computing Network Bid Prices", 1999).
"""

from __future__ import annotations

from collections.abc import Iterable
from math import erf, sqrt

from perdure.recovery.market.history import History
from perdure.recovery.market.offers import Offer

# An offer tends to stay as it is, available or not, for a time of this order. So its share of a time that is not much
# longer is uncertain, even if its share in the long run is known.
_CORRELATED_S = 8 * 3600.0

# Offers that suffice with all but this probability are enough.
_NEGLIGIBLE = 1e-3


def bid_price(
    offers: Iterable[Offer], history: History, now: float, *, work_s: float, time_s: float, last_price: float
) -> float:
    """The most per hour that a spot offer is worth for `work_s` of work, which may take `time_s`, at least as long.

    `offers`: spot offers, the cheapest first. `last_price`: that of on-demand, which is always available.
    """
    spare = 1 - work_s / time_s  # the share of the time for which no offer need be available
    limit, price, insufficient = 0.0, 0.0, 1.0
    # Of the share of time for which none of the offers so far is available: its mean, and the mean of its square.
    mean = square = 1.0
    for offer in offers:
        if insufficient < _NEGLIGIBLE or offer.price_per_hour >= last_price:
            break
        limit += (offer.price_per_hour - price) * insufficient
        price = offer.price_per_hour
        share, evidence_s = history.availability(offer.key, now)
        unknown = min(1.0, _CORRELATED_S / time_s + _CORRELATED_S / evidence_s)
        mean *= 1 - share
        square *= (1 - share) ** 2 + share * (1 - share) * unknown
        insufficient = min(insufficient, _exceeds(spare, mean, square - mean * mean))
    return limit + max(0.0, last_price - price) * insufficient


def _exceeds(bound: float, mean: float, variance: float) -> float:
    """The probability that a normal variable exceeds `bound`."""
    return float(mean > bound) if variance <= 0 else (1 - erf((bound - mean) / sqrt(2 * variance))) / 2
