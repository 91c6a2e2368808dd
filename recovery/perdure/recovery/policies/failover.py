"""FAILOVER: stays in the region where the task ran, as long as that has capacity."""

from __future__ import annotations

from perdure.recovery.job import TaskView
from perdure.recovery.market.view import MarketView
from perdure.recovery.policies.decisions import Choice
from perdure.recovery.policies.offer_choice import choose


def failover(task: TaskView, market: MarketView, now: float) -> Choice:
    """First the region where the task last ran, then the others; cheapest first. Before it has run: as CHEAPEST."""
    home = _home(task)
    return choose(task, market, now, lambda offer: (home is not None and (offer.cloud, offer.region) != home,))


def _home(task: TaskView) -> tuple[str, str] | None:
    if not task.has_run:
        return None
    # While launches are being refused, `last_offer` is one that was tried, not the one on which the task ran.
    last_run = task.preempted_from if task.consecutive_refusals and task.preempted_from else task.last_offer
    return (last_run.cloud, last_run.region) if last_run else None
