"""Whether a running task should move: to the cheapest offer, all costs included, if the move pays for itself."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.recovery.job import TaskView
from perdure.recovery.market.fit import fitting_offers
from perdure.recovery.market.offers import Offer
from perdure.recovery.market.requirements import MachineRequirement
from perdure.recovery.market.unavailability_index import UnavailabilityIndex
from perdure.recovery.market.view import MarketView
from perdure.recovery.policies.cost_model import CostModel
from perdure.recovery.policies.decisions import Move, Reconsidered, Stay
from perdure.recovery.policies.offer_choice import REEVALUATE_S, first_available


def find_better_offer(
    task: TaskView,
    market: MarketView,
    now: float,
    here: Offer,
    requirements: Sequence[MachineRequirement] | None = None,
) -> Reconsidered:
    """`Move` to the available offer of least cost if that pays; else `Stay` for ten minutes.

    `here`: the offer on which the task runs. `requirements`: if given, these replace the task's own. Only a launch
    can show whether an offer has capacity: if it is refused, the offer cools down like any other.
    """
    costs = CostModel(task, market.history, now)
    index = UnavailabilityIndex([u for u in market.unavailable if u.until > now])
    fit = fitting_offers(requirements or task.requirements, market.offers)
    # The price may have changed since the machine was launched.
    key = here.key
    rank_here, here = next((ranked for ranked in fit if ranked[1].key == key), (None, here))
    ceiling = costs.hourly_cost(here)
    # Offers of another rank are not considered, however cheap: the user prefers the rank that the task has now.
    candidates = [r for r in fit if r[1].price_per_hour < ceiling and rank_here in (None, r[0]) and r[1].key != key]
    best = first_available(candidates, index, costs.total_cost, [])
    gain = costs.gain(here, best) if best else 0.0
    if best is None or gain <= 0:
        return Stay(now + REEVALUATE_S)
    return Move(best, f"saves about ${gain * task.num_nodes:.2f} over {costs.stay_s(best) / 3600:.1f} h")
