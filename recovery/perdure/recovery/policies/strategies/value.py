"""VALUE: the least cost per unit of progress."""

from __future__ import annotations

from perdure.recovery.job import TaskView
from perdure.recovery.market.offers import Market
from perdure.recovery.market.view import MarketView
from perdure.recovery.policies.better_offer import find_better_offer
from perdure.recovery.policies.cost_model import CostModel
from perdure.recovery.policies.decisions import Choice, Place, Reconsidered, Stay, Wait
from perdure.recovery.policies.placement import REEVALUATE_S, choose


class ValuePolicy:
    """Chooses the offer of least cost, including the start-ups after losses, and moves as soon as a move pays.

    On-demand is used only if the task allows it; and, if the task allows spot as well, only once waiting for spot has
    delayed the task by as much as `patience` allows.
    """

    def choose(self, task: TaskView, market: MarketView, now: float) -> Choice:
        costs = CostModel(task, market.history, now)
        choice = choose(task, market, now, cost=costs.total_cost)
        is_on_demand = isinstance(choice, Place) and choice.offer.market is Market.ON_DEMAND
        if not is_on_demand or not any(r.use_spot for r in task.requirements):
            return choice
        until = _wait_ends_at(task, now)
        if until <= now:
            return choice
        why = "no spot offer is available; waiting for one costs less than on-demand"
        return Wait(min(until, now + REEVALUATE_S / 2), (why,))

    def reconsider(self, task: TaskView, market: MarketView, now: float) -> Reconsidered:
        return find_better_offer(task, market, now, task.current.offer) if task.current else Stay()


def _wait_ends_at(task: TaskView, now: float) -> float:
    """When the task will have been delayed by as much as `patience` allows."""
    if task.started_at is None:
        return now
    done_s = task.progress_s(now)
    fastest_s = max(task.work_s or 0.0, done_s)
    return task.started_at + done_s + task.recovery.patience * fastest_s
