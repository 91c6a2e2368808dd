"""A policy without one of its parts, to measure what each part is worth. No task can select it."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from perdure.recovery.frozen import dataclass, replace
from perdure.recovery.job import TaskView
from perdure.recovery.market.history import History, StartupTimes
from perdure.recovery.market.offers import Market, OfferKey
from perdure.recovery.market.view import MarketView
from perdure.recovery.policies.decisions import Choice, Move, Policy, Reconsidered, Stay
from perdure.recovery.policies.placement import REEVALUATE_S
from perdure.recovery.policies.strategies.deadline import DeadlinePolicy

# Each part, and how a policy behaves without it.
PARTS: dict[str, str] = {
    "reserve": "slack may be spent on waiting, down to the last start-up",
    "returns": "never moves from on-demand back to spot",
    "moves": "never moves from spot to other spot",
    "cooldown": "an offer that was preempted is tried again at once",
    "lives": "every offer is assumed to last as long as the work",
    "volatility": "every offer is assumed to be equally volatile",
    "starts": "start-up times are assumed and never learned",
    "slack": "slack that losses cost has no price, however scarce it is",
}


@dataclass(frozen=True)
class _NeverLost(History):
    def life_s(self, _key: OfferKey, _now: float, /) -> float:
        return inf


@dataclass(frozen=True)
class _EqualVolatility(History):
    def volatility(self, _key: OfferKey, _now: float, /) -> float:
        return 1.0


def _without_preemptions(market: MarketView) -> MarketView:
    return replace(market, unavailable=tuple(u for u in market.unavailable if not u.from_preemption))


def _without_lives(market: MarketView) -> MarketView:
    known = market.history
    return replace(market, history=_NeverLost(known.tracks, known.regions, known.startup_times))


def _without_volatility(market: MarketView) -> MarketView:
    known = market.history
    return replace(market, history=_EqualVolatility(known.tracks, known.regions, known.startup_times))


def _without_startup_times(market: MarketView) -> MarketView:
    return replace(market, history=replace(market.history, startup_times=StartupTimes()))


# The market as the policy sees it without the part.
_FILTERS: dict[str, Callable[[MarketView], MarketView]] = {
    "cooldown": _without_preemptions,
    "lives": _without_lives,
    "volatility": _without_volatility,
    "starts": _without_startup_times,
}

# The moves that the policy does not make without the part: from which market to which.
_FORBIDDEN_MOVES: dict[str, tuple[Market, Market]] = {
    "returns": (Market.ON_DEMAND, Market.SPOT),
    "moves": (Market.SPOT, Market.SPOT),
}


@dataclass(frozen=True)
class Ablated:
    """`policy` without the information, or without the moves, that `part` is about."""

    policy: Policy
    part: str

    def choose(self, task: TaskView, market: MarketView, now: float) -> Choice:
        return self.policy.choose(task, self._filtered(market), now)

    def reconsider(self, task: TaskView, market: MarketView, now: float, /) -> Reconsidered:
        decision = self.policy.reconsider(task, self._filtered(market), now)
        if task.current is None or not isinstance(decision, Move):
            return decision
        is_forbidden = (task.current.offer.market, decision.offer.market) == _FORBIDDEN_MOVES.get(self.part)
        return Stay(now + REEVALUATE_S) if is_forbidden else decision

    def _filtered(self, market: MarketView) -> MarketView:
        filtered = _FILTERS.get(self.part)
        return filtered(market) if filtered else market


def ablate(policy: Policy, part: str) -> Policy | None:
    """`policy` without `part`; None if it has no such part."""
    if part in ("reserve", "slack"):
        if not isinstance(policy, DeadlinePolicy):
            return None
        return DeadlinePolicy(reserve=0.0) if part == "reserve" else DeadlinePolicy(prices_slack=False)
    return Ablated(policy, part) if part in PARTS else None
