"""FAILOVER: near where it ran, for as long as there is room."""

from __future__ import annotations

from perdure.recovery.job import TaskView
from perdure.recovery.market import MarketView
from perdure.recovery.policies.choice import Choice
from perdure.recovery.policies.selection import choose


def failover(task: TaskView, market: MarketView, now: float) -> Choice:
    """The region where the task last ran first, by price; then the others, by price. Before it has run: as CHEAPEST."""
    home = _home(task)
    return choose(task, market, now, lambda offer: (home is not None and (offer.cloud, offer.region) != home,))


def _home(task: TaskView) -> tuple[str, str] | None:
    if not task.has_run:
        return None
    # While launches are being refused, `last_offer` is a place that was tried, not one where the task ran.
    tried = task.preempted_from if task.refused_in_a_row and task.preempted_from else task.last_offer
    return (tried.cloud, tried.region) if tried else None
