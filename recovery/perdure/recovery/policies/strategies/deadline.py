"""DEADLINE: meets the deadline, at the least cost that this allows.

Slack is the time that may still be lost: the time to the deadline, less the remaining work, less the worst start-up.

- Without a machine, spot is started only while slack covers a second worst-case start-up: that of the on-demand
  machine if the spot launch fails.
- While no spot is available, slack may be spent on waiting, down to a reserve in proportion to the remaining work.
  Every future loss costs a start-up, and the reserve lets spot be used to the end. Below it, on-demand is used.
- Above the reserve, waiting is free. Then neither dear spot nor a move to another region is paid for at once.
- Until the task has shown how fast it is, slack is kept in case that its stated work is too small.
- On on-demand, spot is tried repeatedly. Its machine starts beside the one that runs, so a try costs no slack.
- On spot, work since the last durable checkpoint may be lost at any moment, so it does not count as done. As soon as
  slack, counted this way, is used up, on-demand takes over before anything is lost.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import islice

from perdure.recovery.frozen import dataclass, replace
from perdure.recovery.job import AttemptView, TaskView
from perdure.recovery.market.fit import fitting_offers
from perdure.recovery.market.offers import Market, Offer
from perdure.recovery.market.requirements import MachineRequirement
from perdure.recovery.market.view import MarketView
from perdure.recovery.policies.better_offer import find_better_offer, worth_taking
from perdure.recovery.policies.cost_model import CostModel, price_of_slack
from perdure.recovery.policies.decisions import Choice, Move, Place, Reconsidered, Stay, Wait
from perdure.recovery.policies.placement import REEVALUATE_S, choose

# The share of the remaining work that is kept as slack. The optimum over a semi-Markov model of spot (see
# docs/concepts/policies.md) keeps 0.09 to 0.2 of it, almost independently of prices. Its cost is flat between 0.08 and
# 0.12.
RESERVE = 0.1

# Where losses cost more than that, as much more is kept; up to this many times as much.
_MOST = 2.0
# Before its first loss, a task expects one in this time.
_NO_LOSS_FOR_S = 4 * 3600.0

# Among so many of the cheapest spot offers, slack is divided.
_PRICED_OFFERS = 32

# How much more than stated the work may turn out to be: a tenth of it was left out.
_UNDERSTATED = 1 / 9

# Allowance for the drain before another machine takes over, and for a busy controller.
_MARGIN_S = 120.0

# With `on_time` below 1: so many start-ups of a task are the last that can be afforded. Each of them may be too long.
_CRITICAL_STARTS = 2

_SPOT, _ON_DEMAND = Market.SPOT, Market.ON_DEMAND


@dataclass(frozen=True)
class DeadlinePolicy:
    """For tasks with `deadline_at`.

    On-demand is used even if the task asks for spot only. While the task's work is unknown, only on-demand is used.
    """

    reserve: float = RESERVE
    prices_slack: bool = True

    def choose(self, task: TaskView, market: MarketView, now: float) -> Choice:
        worst_s = _worst_s(task, market)
        slack_s = _slack_s(task, task.current, market, now)
        costs = self._costs(task, market, now, slack_s)
        spot = _spot_only(task.requirements)
        fit = fitting_offers(spot, market.offers)
        doubt_s = _doubt_s(task, market, slack_s)
        idle_s = slack_s - max(worst_s + doubt_s, self._reserve_s(task, costs))
        worth = worth_taking(fit, costs, idle_s) if idle_s > 0 and fit else fit
        on_spot = choose(task, market, now, cost=costs.total_cost, requirements=spot, fit=worth) if spot else None
        if isinstance(on_spot, Place) and slack_s > worst_s + doubt_s:
            return on_spot
        if idle_s > 0 and isinstance(on_spot, Wait):
            why = (*on_spot.why, *_why_left_out(fit, worth))
            return Wait(min(on_spot.until, now + idle_s), why)
        on_demand = choose(task, market, now, cost=costs.total_cost, requirements=_as_on_demand(task.requirements))
        return on_spot if on_spot is not None and not isinstance(on_demand, Place) else on_demand

    def _costs(self, task: TaskView, market: MarketView, now: float, slack_s: float) -> CostModel:
        """The costs of offers for `task`, in which the slack that their losses cost has a price if it is scarce."""
        costs = CostModel(task, market.history, now)
        fit = fitting_offers(_spot_only(task.requirements), market.offers) if self.prices_slack else []
        on_demand = fitting_offers(_as_on_demand(task.requirements), market.offers) if len(fit) > 1 else []
        if not on_demand:
            return costs  # there is nothing to choose among
        spot = [offer for _, offer in islice(fit, _PRICED_OFFERS)]
        return replace(costs, slack_price=price_of_slack(costs, spot, on_demand[0][1].price_per_hour, slack_s))

    def _reserve_s(self, task: TaskView, costs: CostModel) -> float:
        """The slack that waiting must leave: what losses will cost, within bounds.

        How often losses happen, and what each costs, are the task's own averages so far.
        """
        losses_per_s = (task.recovery_count + 1) / (task.run_seconds + _NO_LOSS_FOR_S)
        share = losses_per_s * costs.loss_s
        return min(max(share, self.reserve), _MOST * self.reserve) * costs.work_left_s

    def reconsider(self, task: TaskView, market: MarketView, now: float) -> Reconsidered:
        here = task.current
        if here is None:
            return Stay()
        slack_s = _slack_s(task, here, market, now)
        slack_s -= _doubt_s(task, market, slack_s)
        if here.offer.market is _SPOT and slack_s <= 0:
            on_demand = choose(task, market, now, requirements=_as_on_demand(task.requirements))
            if isinstance(on_demand, Place):
                return Move(on_demand.offer, "losing this machine would endanger the deadline")
            return Stay(now + REEVALUATE_S)
        if here.offer.market is _ON_DEMAND and slack_s <= _until_saved_s(task, market, now):
            return Stay(now + REEVALUATE_S)
        costs = self._costs(task, market, now, slack_s)
        decision = find_better_offer(task, market, now, here.offer, _spot_only(task.requirements), costs)
        if isinstance(decision, Stay) and decision.until is not None and here.offer.market is _SPOT:
            return Stay(min(decision.until, now + slack_s))
        return decision


def _why_left_out(fit: list[tuple[int, Offer]], worth: list[tuple[int, Offer]]) -> tuple[str, ...]:
    """For users: why the task does not try the first of the offers that fit and are not `worth` taking."""
    kept = {offer.key for _, offer in worth}
    first = next((offer for _, offer in fit if offer.key not in kept), None)
    if first is None:
        return ()
    return (f"{first.name}: costs ${first.price_per_hour:.2f} per hour; there is time to wait for a better offer",)


def _slack_s(task: TaskView, here: AttemptView | None, market: MarketView, now: float) -> float:
    """Seconds that may still be lost. On spot, work counts once it is durable; on on-demand, as it is done."""
    deadline_at, work_s = task.recovery.deadline_at, task.cautious_work_s
    if deadline_at is None or work_s is None:
        return 0.0  # unknown: be safe
    on_demand = here is not None and here.offer.market is _ON_DEMAND
    done_s = task.progress_s(now) if on_demand else task.durable_s
    return deadline_at - now - max(0.0, work_s - done_s) - _worst_s(task, market) - _MARGIN_S


def _worst_s(task: TaskView, market: MarketView) -> float:
    """How long a start-up may take, as certainly as the task has to be on time."""
    return market.history.startup_times.within_s(1 - (1 - task.recovery.on_time) / _CRITICAL_STARTS)


def _doubt_s(task: TaskView, market: MarketView, slack_s: float) -> float:
    """The slack to keep in case that the stated work turns out to be too small.

    Only until the task has shown how fast it is, and only if the deadline could then be met at all: with a deadline
    that leaves no room for the error, protection from it would cost much and save nothing.
    """
    stated_s = task.recovery.work_s
    if stated_s is None or not task.work_is_unproven:
        return 0.0
    doubt_s = stated_s * _UNDERSTATED
    # A start on spot that is lost may use up two worst starts.
    return doubt_s if slack_s > doubt_s - 2 * _worst_s(task, market) else 0.0


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
