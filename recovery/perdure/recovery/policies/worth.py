"""What an offer is worth to a task: its price with all that a stay there costs besides, and what a move saves."""

from __future__ import annotations

from dataclasses import field
from math import exp

from perdure.recovery.history import History
from perdure.recovery.job import TaskView
from perdure.recovery.offers import Market, Offer, OfferKey
from perdure.recovery.values import cached, dataclass

_HOUR_S = 3600.0

# The work that is left, where nobody said how much there is.
_UNKNOWN_WORK_S = 24 * 3600.0

# Less work than this is left to nobody: estimates of it are not that good.
_LEAST_WORK_S = 300.0

# What a move earns has to be so many times what it costs: lives are guessed, costs are sure.
_CAUTION = 1.5

_ON_DEMAND = Market.ON_DEMAND


@dataclass(frozen=True)
class Appraisal:
    """Answers for one task at one moment."""

    task: TaskView
    history: History
    now: float
    _stays: dict[OfferKey, float] = field(default_factory=dict)

    @cached
    def work_left_s(self) -> float:
        """Seconds of running until the task is done, from what is durable or being done now."""
        work_s = self.task.work_s
        return _UNKNOWN_WORK_S if work_s is None else max(_LEAST_WORK_S, work_s - self.task.progress_s(self.now))

    def stay_s(self, offer: Offer) -> float:
        """The mean time that the task would run there: until the offer is lost or the work is done."""
        if offer.market is _ON_DEMAND:
            return self.work_left_s
        key = offer.key
        known = self._stays.get(key)
        if known is None:
            work_s = self.work_left_s
            known = self._stays[key] = work_s * (1 - exp(-self.history.life_s(key, self.now) / work_s))
        return known

    def hourly(self, offer: Offer) -> float:
        """USD per hour of work and node, the starts that losses bring about included."""
        if offer.market is _ON_DEMAND:
            return offer.price_per_hour
        return offer.price_per_hour * (1 + self.history.start_ups.usual_s / self.stay_s(offer))

    def entering(self, offer: Offer) -> float:
        """USD per node for starting there, work being where it is."""
        last = self.task.last_offer
        leaves = last is not None and (last.cloud, last.region) != (offer.cloud, offer.region)
        carrying = self.task.recovery.move_cost / self.task.num_nodes if leaves else 0.0
        return offer.price_per_hour * self.history.start_ups.usual_s / _HOUR_S + carrying

    def cost(self, offer: Offer) -> float:
        """USD per hour of work, what it takes to begin spread over the stay. Never below the price."""
        return offer.price_per_hour + self.entering(offer) * _HOUR_S / self.stay_s(offer)

    def gain(self, here: Offer, there: Offer) -> float:
        """USD per node that a move saves beyond what it costs, with caution; above 0 it pays."""
        stay_s = self.stay_s(there) - self.history.start_ups.usual_s
        saves = (self.hourly(here) - self.hourly(there)) * max(0.0, stay_s) / _HOUR_S
        return saves - _CAUTION * self.entering(there)
