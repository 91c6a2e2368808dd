"""Where a task that runs would rather run: the best offer of some that it may move to, and when to look again."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.recovery.job import TaskView
from holdfast.recovery.market import MarketView
from holdfast.recovery.matching import fitting
from holdfast.recovery.needs import Need
from holdfast.recovery.offers import Offer
from holdfast.recovery.policies.choice import Move, Reconsidered, Stay
from holdfast.recovery.policies.selection import LOOK_AGAIN_S, RefusalIndex
from holdfast.recovery.policies.worth import Appraisal


def better_place(
    task: TaskView, market: MarketView, now: float, here: Offer, needs: Sequence[Need] | None = None
) -> Reconsidered:
    """`Move` to the offer that saves most, if any pays and nothing stands against it; else `Stay` for ten minutes.

    A launch is the only way to learn whether an offer can be had: one that is refused cools down like any other.
    """
    appraisal = Appraisal(task, market.history, now)
    ceiling = appraisal.hourly(here)
    index = RefusalIndex(r for r in market.refusals if r.until > now)
    best, most = None, 0.0
    for _, offer in fitting(needs or task.needs, market.offers):
        if offer.price_per_hour >= ceiling or offer.key == here.key or index.covering(offer):
            continue
        if (gain := appraisal.gain(here, offer)) > most:
            best, most = offer, gain
    if best is None:
        return Stay(now + LOOK_AGAIN_S)
    return Move(best, f"saves about ${most * task.num_nodes:.2f} over {appraisal.stay_s(best) / 3600:.1f} h")
