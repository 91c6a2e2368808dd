"""Where a task that runs would rather run: the best offer of some that it may move to, and when to look again."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.recovery.job import TaskView
from perdure.recovery.market import MarketView
from perdure.recovery.matching import fitting
from perdure.recovery.needs import Need
from perdure.recovery.offers import Offer
from perdure.recovery.policies.choice import Move, Reconsidered, Stay
from perdure.recovery.policies.selection import LOOK_AGAIN_S, RefusalIndex, first_free
from perdure.recovery.policies.worth import Appraisal


def better_place(
    task: TaskView, market: MarketView, now: float, here: Offer, needs: Sequence[Need] | None = None
) -> Reconsidered:
    """`Move` to the offer of least cost against which nothing stands, if that pays; else `Stay` for ten minutes.

    A launch is the only way to learn whether an offer can be had: one that is refused cools down like any other.
    """
    appraisal = Appraisal(task, market.history, now)
    index = RefusalIndex([r for r in market.refusals if r.until > now])
    fit = fitting(needs or task.needs, market.offers)
    # The price of where it runs may have moved since it was bought.
    key = here.key
    rank_here, here = next((ranked for ranked in fit if ranked[1].key == key), (None, here))
    ceiling = appraisal.hourly(here)
    # What the user likes less is not moved to, however cheap.
    liked = [r for r in fit if r[1].price_per_hour < ceiling and rank_here in (None, r[0]) and r[1].key != key]
    best = first_free(liked, index, appraisal.cost, [])
    gain = appraisal.gain(here, best) if best else 0.0
    if best is None or gain <= 0:
        return Stay(now + LOOK_AGAIN_S)
    return Move(best, f"saves about ${gain * task.num_nodes:.2f} over {appraisal.stay_s(best) / 3600:.1f} h")
