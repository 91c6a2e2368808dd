"""CHEAPEST: the cheapest offer."""

from __future__ import annotations

from perdure.recovery.job import TaskView
from perdure.recovery.market.view import MarketView
from perdure.recovery.policies.decisions import Choice
from perdure.recovery.policies.placement import choose


def cheapest(task: TaskView, market: MarketView, now: float) -> Choice:
    """By price alone. After a preemption, that offer cools down, but its zone and region do not."""
    return choose(task, market, now)
