"""FAILOVER: stays in the region where the task ran, as long as that has capacity."""

from __future__ import annotations

from perdure.recovery.job import TaskView
from perdure.recovery.market.view import MarketView
from perdure.recovery.policies.decisions import Choice
from perdure.recovery.policies.placement import choose


def failover(task: TaskView, market: MarketView, now: float) -> Choice:
    """First the region where the task last ran, then the others; cheapest first. Before it has run: as CHEAPEST."""
    home = task.home
    return choose(task, market, now, lambda offer: (home is not None and (offer.cloud, offer.region) != home,))
