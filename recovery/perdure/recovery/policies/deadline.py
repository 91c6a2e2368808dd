"""DEADLINE: done in time for certain, and at the least cost that this allows.

Slack is what may still be lost: the time to the deadline, less the work that is left, less the worst start-up.

- Spot is started only while a start in vain leaves slack for another, on-demand: twice the worst is counted then.
- While spot is away, slack may be waited away, down to a reserve in proportion to the work that is left: every loss to
  come will cost a start, and the reserve lets spot be used to the end. Below it the work goes on on-demand.
- On on-demand, spot is tried again and again: its machine starts beside the one that runs, so a try costs no slack.
- On spot, work since the last durable checkpoint may be lost at any moment: it counts as not done. As soon as slack, so
  counted, is used up, on-demand takes over, before anything was lost.
"""

from __future__ import annotations

from functools import lru_cache

from perdure.recovery.job import AttemptView, TaskView
from perdure.recovery.market import MarketView
from perdure.recovery.needs import Need
from perdure.recovery.offers import Market
from perdure.recovery.policies.choice import Choice, Move, Place, Reconsidered, Stay, Wait
from perdure.recovery.policies.elsewhere import better_place
from perdure.recovery.policies.selection import LOOK_AGAIN_S, choose
from perdure.recovery.policies.worth import Appraisal
from perdure.recovery.values import dataclass, replace

# The share of the work that is left which is kept as slack. The optimum over a semi-Markov model of spot (see
# docs/policies.md) keeps 0.09 to 0.2 of it, nearly whatever the prices; cost is flat from 0.08 to 0.12.
RESERVE = 0.1

# A drain before a machine takes over from another, and a controller that is busy.
_MARGIN_S = 120.0

_SPOT, _ON_DEMAND = Market.SPOT, Market.ON_DEMAND


@dataclass(frozen=True)
class Deadline:
    """For tasks with `deadline_at`. On-demand is used even where the task asks for spot alone; and it alone, as long as
    nobody knows how much work there is."""

    reserve: float = RESERVE

    def choose(self, task: TaskView, market: MarketView, now: float) -> Choice:
        appraisal = Appraisal(task, market.history, now)
        worst_s = market.history.start_ups.worst_s
        slack_s = _slack_s(task, task.current, market, now)
        spot = _on_spot(task.needs)
        found = choose(task, market, now, worth=appraisal.cost, needs=spot) if spot else None
        if isinstance(found, Place) and slack_s > worst_s:
            return found
        idle_s = slack_s - max(worst_s, self.reserve * appraisal.work_left_s)
        if idle_s > 0 and isinstance(found, Wait):
            return replace(found, until=min(found.until, now + idle_s))
        certain = choose(task, market, now, worth=appraisal.cost, needs=_on_demand(task.needs))
        return found if found is not None and not isinstance(certain, Place) else certain

    def reconsider(self, task: TaskView, market: MarketView, now: float) -> Reconsidered:
        here = task.current
        if here is None:
            return Stay()
        slack_s = _slack_s(task, here, market, now)
        if here.offer.market is _SPOT and slack_s <= 0:
            certain = choose(task, market, now, needs=_on_demand(task.needs))
            if isinstance(certain, Place):
                return Move(certain.offer, "losing this machine would endanger the deadline")
            return Stay(now + LOOK_AGAIN_S)
        if here.offer.market is _ON_DEMAND and slack_s <= _until_saved_s(task, market, now):
            return Stay(now + LOOK_AGAIN_S)
        found = better_place(task, market, now, here.offer, _on_spot(task.needs))
        if isinstance(found, Stay) and found.until is not None and here.offer.market is _SPOT:
            return Stay(min(found.until, now + slack_s))
        return found


def _slack_s(task: TaskView, here: AttemptView | None, market: MarketView, now: float) -> float:
    """Seconds that may still be lost. On spot, work counts once it is durable; on on-demand, as it is done."""
    deadline_at, work_s = task.recovery.deadline_at, task.work_s
    if deadline_at is None or work_s is None:
        return 0.0  # nothing to go by: the safe side
    on_demand = here is not None and here.offer.market is _ON_DEMAND
    done_s = task.progress_s(now) if on_demand else task.durable_s
    return deadline_at - now - max(0.0, work_s - done_s) - market.history.start_ups.worst_s - _MARGIN_S


def _until_saved_s(task: TaskView, market: MarketView, now: float) -> float:
    """How long a stay on spot has to be worth its own start and the next: until something of it is durable, or slack is
    gone before.

    An interval between checkpoints is, on average, twice as long as the newest one is old at any one moment. It need be
    no longer than two usual start-ups; it is as long as that for a task that has never said what is durable.
    """
    starts_s = 2 * market.history.start_ups.usual_s
    newest_s = max(0.0, task.progress_s(now) - task.durable_s)
    return starts_s if task.saved_s is None else min(starts_s, 2 * newest_s)


@lru_cache(maxsize=64)
def _on_spot(needs: tuple[Need, ...]) -> tuple[Need, ...]:
    return tuple([n for n in needs if n.use_spot])


@lru_cache(maxsize=64)
def _on_demand(needs: tuple[Need, ...]) -> tuple[Need, ...]:
    """What the task asks of spot machines it takes on-demand as well, at any price."""
    return tuple(dict.fromkeys(replace(n, use_spot=False, max_price_per_hour=None) for n in needs))
