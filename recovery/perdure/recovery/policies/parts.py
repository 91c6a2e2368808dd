"""A policy without one of its parts: to measure what each is worth. No task can ask for it."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from perdure.recovery.history import History, StartUps
from perdure.recovery.job import TaskView
from perdure.recovery.market import MarketView
from perdure.recovery.offers import Market, OfferKey
from perdure.recovery.policies.choice import Choice, Move, Policy, Reconsidered, Stay
from perdure.recovery.policies.deadline import Deadline
from perdure.recovery.policies.selection import LOOK_AGAIN_S
from perdure.recovery.values import dataclass, replace

PARTS: dict[str, str] = {
    "reserve": "slack is waited away to the last start-up",
    "returns": "from on-demand never back to spot",
    "moves": "from spot never to other spot",
    "cooldown": "an offer that took a machine back is tried again at once",
    "lives": "offers are taken to last as long as the work does",
    "volatility": "every offer is taken to lose machines as often as any other",
    "starts": "start-up times are guessed and never learned",
}


@dataclass(frozen=True)
class _Immortal(History):
    def life_s(self, _key: OfferKey, _now: float, /) -> float:
        return inf


@dataclass(frozen=True)
class _Alike(History):
    def volatility(self, _key: OfferKey, _now: float, /) -> float:
        return 1.0


_BLINDERS: dict[str, Callable[[MarketView], MarketView]] = {
    "cooldown": lambda m: replace(m, refusals=tuple(r for r in m.refusals if not r.from_preemption)),
    "lives": lambda m: replace(m, history=_Immortal(m.history.tracks, m.history.regions, m.history.start_ups)),
    "volatility": lambda m: replace(m, history=_Alike(m.history.tracks, m.history.regions, m.history.start_ups)),
    "starts": lambda m: replace(m, history=replace(m.history, start_ups=StartUps())),
}

# From which market to which it does not move.
_HELD: dict[str, tuple[Market, Market]] = {
    "returns": (Market.ON_DEMAND, Market.SPOT),
    "moves": (Market.SPOT, Market.SPOT),
}


@dataclass(frozen=True)
class Without:
    """`policy`, kept from seeing, or from doing, what `part` is about."""

    policy: Policy
    part: str

    def choose(self, task: TaskView, market: MarketView, now: float) -> Choice:
        return self.policy.choose(task, self._seen(market), now)

    def reconsider(self, task: TaskView, market: MarketView, now: float, /) -> Reconsidered:
        found = self.policy.reconsider(task, self._seen(market), now)
        if task.current is None or not isinstance(found, Move):
            return found
        is_held = (task.current.offer.market, found.offer.market) == _HELD.get(self.part)
        return Stay(now + LOOK_AGAIN_S) if is_held else found

    def _seen(self, market: MarketView) -> MarketView:
        blinder = _BLINDERS.get(self.part)
        return blinder(market) if blinder else market


def without(policy: Policy, part: str) -> Policy | None:
    """`policy` without `part`; None where it has no such part."""
    if part == "reserve":
        return Deadline(reserve=0.0) if isinstance(policy, Deadline) else None
    return Without(policy, part) if part in PARTS else None
