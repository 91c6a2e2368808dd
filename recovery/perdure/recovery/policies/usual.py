"""The strategy of a task that names none: by what is known of the offers that it would be given first."""

from __future__ import annotations

from itertools import islice

from perdure.recovery.job import TaskView
from perdure.recovery.market import MarketView
from perdure.recovery.matching import fitting
from perdure.recovery.offers import Market
from perdure.recovery.policies.registry import DEFAULT

# VALUE weighs what it knows: so many of the cheapest offers have to have been seen so lately.
_OFFERS = 3
_LATELY_S = 3 * 86400.0


def usual_strategy(task: TaskView, market: MarketView, now: float) -> tuple[str, str]:
    """VALUE where the cheapest spot offers that fit were all seen lately, else CHEAPEST; and why, for people."""
    fit = (offer for _, offer in fitting(task.needs, market.offers) if offer.market is Market.SPOT)
    first = list(islice(fit, _OFFERS))
    tracks = [market.history.track(offer.key) for offer in first]
    seen = sum(track is not None and now - track.seen_at <= _LATELY_S for track in tracks)
    if first and seen == len(first):
        offers = "the only spot offer" if len(first) == 1 else f"the {len(first)} cheapest spot offers"
        return "VALUE", f"{offers} that fit {'was' if len(first) == 1 else 'were'} seen within three days"
    if not first:
        return DEFAULT, "no spot offer fits"
    return DEFAULT, f"too little is known for VALUE: {seen} of the {len(first)} cheapest offers were seen in three days"
