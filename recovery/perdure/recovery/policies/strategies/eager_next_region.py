"""EAGER_NEXT_REGION: leaves the region of a preemption."""

from __future__ import annotations

from perdure.recovery.job import TaskView
from perdure.recovery.market.view import MarketView, Offer
from perdure.recovery.policies.decisions import Choice
from perdure.recovery.policies.placement import choose


def eager_next_region(task: TaskView, market: MarketView, now: float) -> Choice:
    """After a preemption: every other region first, then the region's other zones, its own zone last; cheapest first.

    Zones of one region lose their spare capacity together: after a preemption, another zone of the region is preempted
    within ten minutes in 20 to 27 % of cases, a zone elsewhere in about 6 %. Before a preemption: as CHEAPEST.
    """
    left = task.preempted_from

    def reluctance(offer: Offer) -> tuple[bool, ...]:
        if left is None:
            return ()
        in_region = (offer.cloud, offer.region) == (left.cloud, left.region)
        return in_region, in_region and offer.zone == left.zone

    return choose(task, market, now, reluctance)
