"""DEADLINE: meets the deadline, at the least cost that this allows.

Slack is the time that may still be lost: the time to the deadline, less the remaining work, less the worst start-up.

- Without a machine, spot is started only while slack covers a second worst-case start-up: that of the on-demand
  machine if the spot launch fails.
- While no spot is available, slack may be spent on waiting, down to a reserve in proportion to the remaining work.
  Every future loss costs a start-up, and the reserve lets spot be used to the end. Below it, on-demand is used.
- On on-demand, spot is tried repeatedly. Its machine starts beside the one that runs, so a try costs no slack.
- On spot, work since the last durable checkpoint may be lost at any moment, so it does not count as done. As soon as
  slack, counted this way, is used up, on-demand takes over before anything is lost.
"""

from __future__ import annotations

from functools import lru_cache

from perdure.recovery.frozen import dataclass, replace
from perdure.recovery.job import AttemptView, TaskView
from perdure.recovery.market.offers import Market
from perdure.recovery.market.requirements import MachineRequirement
from perdure.recovery.market.view import MarketView
from perdure.recovery.policies.better_offer import find_better_offer
from perdure.recovery.policies.cost_model import CostModel
from perdure.recovery.policies.decisions import Choice, Move, Place, Reconsidered, Stay, Wait
from perdure.recovery.policies.offer_choice import REEVALUATE_S, choose

# The share of the remaining work that is kept as slack. The optimum over a semi-Markov model of spot (see
# docs/concepts/policies.md) keeps 0.09 to 0.2 of it, almost independently of prices. Its cost is flat between 0.08 and
# 0.12.
RESERVE = 0.1

# Allowance for the drain before another machine takes over, and for a busy controller.
_MARGIN_S = 120.0

_SPOT, _ON_DEMAND = Market.SPOT, Market.ON_DEMAND


@dataclass(frozen=True)
class DeadlinePolicy:
    """For tasks with `deadline_at`.

    On-demand is used even if the task asks for spot only. While the task's work is unknown, only on-demand is used.
    """

    reserve: float = RESERVE

    def choose(self, task: TaskView, market: MarketView, now: float) -> Choice:
        costs = CostModel(task, market.history, now)
        worst_s = market.history.startup_times.worst_s
        slack_s = _slack_s(task, task.current, market, now)
        spot = _spot_only(task.requirements)
        on_spot = choose(task, market, now, cost=costs.total_cost, requirements=spot) if spot else None
        if isinstance(on_spot, Place) and slack_s > worst_s:
            return on_spot
        idle_s = slack_s - max(worst_s, self.reserve * costs.work_left_s)
        if idle_s > 0 and isinstance(on_spot, Wait):
            return replace(on_spot, until=min(on_spot.until, now + idle_s))
        on_demand = choose(task, market, now, cost=costs.total_cost, requirements=_as_on_demand(task.requirements))
        return on_spot if on_spot is not None and not isinstance(on_demand, Place) else on_demand

    def reconsider(self, task: TaskView, market: MarketView, now: float) -> Reconsidered:
        here = task.current
        if here is None:
            return Stay()
        slack_s = _slack_s(task, here, market, now)
        if here.offer.market is _SPOT and slack_s <= 0:
            on_demand = choose(task, market, now, requirements=_as_on_demand(task.requirements))
            if isinstance(on_demand, Place):
                return Move(on_demand.offer, "losing this machine would endanger the deadline")
            return Stay(now + REEVALUATE_S)
        if here.offer.market is _ON_DEMAND and slack_s <= _until_saved_s(task, market, now):
            return Stay(now + REEVALUATE_S)
        decision = find_better_offer(task, market, now, here.offer, _spot_only(task.requirements))
        if isinstance(decision, Stay) and decision.until is not None and here.offer.market is _SPOT:
            return Stay(min(decision.until, now + slack_s))
        return decision


def _slack_s(task: TaskView, here: AttemptView | None, market: MarketView, now: float) -> float:
    """Seconds that may still be lost. On spot, work counts once it is durable; on on-demand, as it is done."""
    deadline_at, work_s = task.recovery.deadline_at, task.work_s
    if deadline_at is None or work_s is None:
        return 0.0  # unknown: be safe
    on_demand = here is not None and here.offer.market is _ON_DEMAND
    done_s = task.progress_s(now) if on_demand else task.durable_s
    return deadline_at - now - max(0.0, work_s - done_s) - market.history.startup_times.worst_s - _MARGIN_S


def _until_saved_s(task: TaskView, market: MarketView, now: float) -> float:
    """How long a stay on spot must last to be worth its start-up and the next: until some of its work is durable.

    On average, the interval between checkpoints is twice the age of the newest one at a random moment. The result is at
    most two mean start-ups, and that much for a task that has never reported what is durable.
    """
    starts_s = 2 * market.history.startup_times.mean_s
    newest_s = max(0.0, task.progress_s(now) - task.durable_s)
    return starts_s if task.saved_s is None else min(starts_s, 2 * newest_s)


@lru_cache(maxsize=64)
def _spot_only(requirements: tuple[MachineRequirement, ...]) -> tuple[MachineRequirement, ...]:
    return tuple([r for r in requirements if r.use_spot])


@lru_cache(maxsize=64)
def _as_on_demand(requirements: tuple[MachineRequirement, ...]) -> tuple[MachineRequirement, ...]:
    """All `requirements` as ones for on-demand machines, at any price."""
    return tuple(dict.fromkeys(replace(r, use_spot=False, max_price_per_hour=None) for r in requirements))
