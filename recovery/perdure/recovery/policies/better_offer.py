"""Whether a better offer is worth waiting or moving for.

A running task moves to the cheapest offer, all costs included, if the move pays for itself. A waiting task with slack
to spare takes no spot offer that is dear, or that its data must be moved to, while a better one may come back.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from perdure.recovery.frozen import replace
from perdure.recovery.job import TaskView
from perdure.recovery.market.fit import fitting_offers
from perdure.recovery.market.offers import Market, Offer
from perdure.recovery.market.requirements import MachineRequirement
from perdure.recovery.market.unavailability_index import UnavailabilityIndex
from perdure.recovery.market.view import MarketView
from perdure.recovery.policies.cost_model import CostModel
from perdure.recovery.policies.decisions import Move, Reconsidered, Stay
from perdure.recovery.policies.placement import REEVALUATE_S, first_available

# No spot offer dearer than this many times the cheapest one listed.
_DEAR = 2.0

# For how long after a loss the home region comes first, if leaving it costs something.
_HOME_FIRST_S = 2 * 3600.0


def find_better_offer(
    task: TaskView,
    market: MarketView,
    now: float,
    here: Offer,
    requirements: Sequence[MachineRequirement] | None = None,
    costs: CostModel | None = None,
) -> Reconsidered:
    """`Move` to the available offer of least cost if that pays; else `Stay` for ten minutes.

    `here`: the offer on which the task runs. `requirements` and `costs`: if given, these replace the task's own. Only
    a launch can show whether an offer has capacity: if it is refused, the offer cools down like any other.
    """
    costs = costs or CostModel(task, market.history, now)
    index = UnavailabilityIndex([u for u in market.unavailable if u.until > now])
    fit = fitting_offers(requirements or task.requirements, market.offers)
    # The price may have changed since the machine was launched.
    key = here.key
    rank_here, here = next((ranked for ranked in fit if ranked[1].key == key), (None, here))
    # Slack decides among spot offers. Whether to leave on-demand is a matter of cost: on it, slack is not used at all.
    compared = replace(costs, slack_price=0.0) if here.market is Market.ON_DEMAND else costs
    ceiling = compared.hourly_cost(here)
    # Offers of another rank are not considered, however cheap: the user prefers the rank that the task has now.
    candidates = [r for r in fit if r[1].price_per_hour < ceiling and rank_here in (None, r[0]) and r[1].key != key]
    best = first_available(candidates, index, costs.total_cost, [])
    gain = compared.gain(here, best) if best else 0.0
    if best is None or gain <= 0:
        return Stay(now + REEVALUATE_S)
    counted = ", counting the slack that losses cost" if compared.slack_price else ""
    return Move(best, f"saves about ${gain * task.num_nodes:.2f} over {costs.stay_s(best) / 3600:.1f} h{counted}")


def why_wait(offer: Offer, task: TaskView, market: MarketView, costs: CostModel) -> str:
    """Why to wait rather than take `offer`, a spot offer that may be tried now; empty if it is worth taking.

    For a task with slack to spare: waiting costs it nothing.
    """
    limit, because = _price_limit(offer, task, market, costs.now)
    if offer.price_per_hour > limit:
        return f"{offer.name} costs ${offer.price_per_hour:.2f} per hour, more than {because}; there is time to wait"
    home = task.home
    if home is None or not task.recovery.move_cost or home == (offer.cloud, offer.region):
        return ""
    region = market.history.regions.get(home)
    if region is None or costs.now - region.lost_at >= _HOME_FIRST_S:
        return ""
    cost = f"moving there costs ${task.recovery.move_cost:.2f}"
    return f"{offer.name} is outside {home[1]}, and {cost}; there is time to wait"


def _price_limit(offer: Offer, task: TaskView, market: MarketView, now: float) -> tuple[float, str]:
    """The most that a spot offer may cost per hour, and what that is."""
    ranked = fitting_offers(task.requirements, market.offers)
    rank = next((rank for rank, other in ranked if other.key == offer.key), None)
    # Only offers that the user prefers as much: cheap ones that are the last resort are none to wait for.
    spot = [o.price_per_hour for r, o in ranked if r == rank and o.market is Market.SPOT]
    cheapest = min(spot, default=inf)
    limit, because = _DEAR * cheapest, f"{_DEAR:g} times the cheapest spot offer"
    work_s, deadline_at = task.cautious_work_s, task.recovery.deadline_at
    on_demand = offer.on_demand_price_per_hour
    if on_demand and work_s is not None and deadline_at is not None and deadline_at > now:
        mixed = on_demand * max(0.0, work_s - task.durable_s) / (deadline_at - now)
        if mixed < cheapest:
            # So far from the deadline, every price is above it, and nothing cheaper than the cheapest will come.
            return cheapest, "the cheapest spot offer"
        if mixed < limit:
            return mixed, "on-demand for the remaining work, spread over the remaining time"
    return limit, because
