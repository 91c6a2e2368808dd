"""Whether a better offer is worth waiting or moving for.

A running task moves to the cheapest offer, all costs included, if the move pays for itself. A waiting task with slack
to spare takes no spot offer that is dear, or that its data must be moved to, while a better one may come back.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby, islice
from math import inf
from operator import itemgetter

from perdure.recovery.frozen import replace
from perdure.recovery.job import TaskView
from perdure.recovery.market.fit import fitting_offers
from perdure.recovery.market.offers import Market, Offer
from perdure.recovery.market.requirements import MachineRequirement
from perdure.recovery.market.unavailability_index import UnavailabilityIndex
from perdure.recovery.market.view import MarketView
from perdure.recovery.policies.bid_price import bid_price
from perdure.recovery.policies.cost_model import CostModel
from perdure.recovery.policies.decisions import Move, Reconsidered, Stay
from perdure.recovery.policies.placement import REEVALUATE_S, first_available

# So many of the cheapest offers of a rank are compared: they suffice nearly always.
_COMPARED = 32

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


def worth_taking(ranked: Sequence[tuple[int, Offer]], costs: CostModel, idle_s: float) -> list[tuple[int, Offer]]:
    """Those of `ranked` (spot offers with their ranks, in order) to take rather than wait for a better one: at least
    the first of each rank.

    For a task that may wait for `idle_s` (above 0) and loses nothing by it.
    """
    task, worth = costs.task, list[tuple[int, Offer]]()
    work_s = max(1.0, (task.cautious_work_s or 0.0) - task.durable_s)
    # Only among offers that the user prefers as much: cheap ones that are the last resort are none to wait for.
    for rank, group in groupby(ranked, itemgetter(0)):
        offers = [offer for _, offer in islice(group, _COMPARED)]
        limit = bid_price(
            offers,
            costs.history,
            costs.now,
            work_s=work_s,
            time_s=work_s + idle_s,
            last_price=offers[0].on_demand_price_per_hour or inf,
        )
        limit = max(limit, offers[0].price_per_hour)
        worth += [(rank, offer) for offer in offers if offer.price_per_hour <= limit]
    return _at_home(worth, costs)


def _at_home(ranked: list[tuple[int, Offer]], costs: CostModel) -> list[tuple[int, Offer]]:
    """Those of `ranked` in the region of the task's data while that comes first; otherwise, or if none is, all."""
    task, home = costs.task, costs.task.home
    if home is None or not task.recovery.move_cost:
        return ranked
    region = costs.history.regions.get(home)
    if region is None or costs.now - region.lost_at >= _HOME_FIRST_S:
        return ranked
    return [(rank, offer) for rank, offer in ranked if (offer.cloud, offer.region) == home] or ranked
