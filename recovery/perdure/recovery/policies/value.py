"""VALUE: the least cost per unit of progress."""

from __future__ import annotations

from perdure.recovery.job import TaskView
from perdure.recovery.market import MarketView
from perdure.recovery.offers import Market
from perdure.recovery.policies.choice import Choice, Place, Reconsidered, Stay, Wait
from perdure.recovery.policies.elsewhere import better_place
from perdure.recovery.policies.selection import LOOK_AGAIN_S, choose
from perdure.recovery.policies.worth import Appraisal


class Value:
    """The offer whose price, with the starts that its losses will bring about, is least; from one that is dear to one
    that is cheap as soon as that pays.

    On-demand is used only where the task asks for it, and, beside spot, only once waiting has used up `patience`.
    """

    def choose(self, task: TaskView, market: MarketView, now: float) -> Choice:
        appraisal = Appraisal(task, market.history, now)
        found = choose(task, market, now, worth=appraisal.cost)
        dear = isinstance(found, Place) and found.offer.market is Market.ON_DEMAND
        if not dear or not any(n.use_spot for n in task.needs):
            return found
        until = _patient_until(task, now)
        if until <= now:
            return found
        return Wait(min(until, now + LOOK_AGAIN_S / 2), ("spot is sold out; waiting for it costs less than on-demand",))

    def reconsider(self, task: TaskView, market: MarketView, now: float) -> Reconsidered:
        return better_place(task, market, now, task.current.offer) if task.current else Stay()


def _patient_until(task: TaskView, now: float) -> float:
    """When the task will have been delayed by as much as `patience` allows."""
    if task.started_at is None:
        return now
    done_s = task.progress_s(now)
    fastest_s = max(task.work_s or 0.0, done_s)
    return task.started_at + done_s + task.recovery.patience * fastest_s
