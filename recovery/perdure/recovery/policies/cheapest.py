"""CHEAPEST: wherever it is cheapest now."""

from __future__ import annotations

from perdure.recovery.job import TaskView
from perdure.recovery.market import MarketView
from perdure.recovery.policies.choice import Choice
from perdure.recovery.policies.selection import choose


def cheapest(task: TaskView, market: MarketView, now: float) -> Choice:
    """By price alone. An offer that took a machine back is left alone for a while, its zone and region are not."""
    return choose(task, market, now)
