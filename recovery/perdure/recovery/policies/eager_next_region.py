"""EAGER_NEXT_REGION: out of the region that took the machine."""

from __future__ import annotations

from perdure.recovery.job import TaskView
from perdure.recovery.market import MarketView, Offer
from perdure.recovery.policies.choice import Choice
from perdure.recovery.policies.selection import choose


def eager_next_region(task: TaskView, market: MarketView, now: float) -> Choice:
    """After a preemption: every other region, by price; then that region's other zones; its own zone last.

    Zones of one region lose their spare capacity together: another zone of the region is taken within ten minutes in 20
    to 27 of 100 cases, a zone elsewhere in about 6. Before a preemption: as CHEAPEST.
    """
    left = task.preempted_from

    def reluctance(offer: Offer) -> tuple[bool, ...]:
        if left is None:
            return ()
        in_region = (offer.cloud, offer.region) == (left.cloud, left.region)
        return in_region, in_region and offer.zone == left.zone

    return choose(task, market, now, reluctance)
