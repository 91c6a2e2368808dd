"""The strategy of a task that names none. It depends on what is known of the offers that the task would get first.

The controller calls it when it compiles a submitted job (`submit.compiler`). Its choice is stored with the job.
"""

from __future__ import annotations

from itertools import islice

from perdure.recovery.job import TaskView
from perdure.recovery.market.fit import fitting_offers
from perdure.recovery.market.offers import Market
from perdure.recovery.market.view import MarketView
from perdure.recovery.policies.registry import FALLBACK_STRATEGY

# VALUE relies on the history: this many of the cheapest offers must have been observed this recently.
_OFFERS = 3
_RECENT_S = 3 * 86400.0
_NEEDS = "the default, VALUE, needs prices seen in the last three days"


def default_strategy(task: TaskView, market: MarketView, now: float) -> tuple[str, str]:
    """The strategy, and why, for users: VALUE if the cheapest fitting spot offers were seen recently, else CHEAPEST."""
    fit = (offer for _, offer in fitting_offers(task.requirements, market.offers) if offer.market is Market.SPOT)
    first = list(islice(fit, _OFFERS))
    tracks = [market.history.track(offer.key) for offer in first]
    seen = sum(track is not None and now - track.seen_at <= _RECENT_S for track in tracks)
    if first and seen == len(first):
        offers = "the only spot offer" if len(first) == 1 else f"the {len(first)} cheapest spot offers"
        return "VALUE", f"{offers} that fit{'s was' if len(first) == 1 else ' were'} seen within three days"
    if not any(requirement.use_spot for requirement in task.requirements):
        return FALLBACK_STRATEGY, "on-demand machines, because the task does not set `use_spot: true`"
    if not first:
        return FALLBACK_STRATEGY, "no spot offer fits"
    if len(first) == 1:
        return FALLBACK_STRATEGY, f"{_NEEDS}, and the only spot offer that fits was not observed"
    return FALLBACK_STRATEGY, f"{_NEEDS}, and {seen or 'none'} of the {len(first)} cheapest spot offers were observed"
