"""What an offer really costs a task (price, start, restarts after losses), and what a move to another one saves."""

from __future__ import annotations

from dataclasses import field
from math import expm1

from perdure.recovery.frozen import cached, dataclass
from perdure.recovery.job import TaskView
from perdure.recovery.market.history import History
from perdure.recovery.market.offers import Market, Offer, OfferKey

_HOUR_S = 3600.0

# The remaining work of a task whose work is unknown.
_UNKNOWN_WORK_S = 24 * 3600.0

# The remaining work is taken to be at least this: estimates are not more accurate.
_MIN_WORK_S = 300.0

# A move must save this many times what it costs: the savings are estimates, the costs are certain.
_MOVE_MARGIN = 1.5

_ON_DEMAND = Market.ON_DEMAND


@dataclass(frozen=True)
class CostModel:
    """The costs of one task at one moment. All are in USD."""

    task: TaskView
    history: History
    now: float
    _stays: dict[OfferKey, float] = field(default_factory=dict)  # a cache for `stay_s`

    @cached
    def work_left_s(self) -> float:
        """Seconds of running until the task is done."""
        work_s = self.task.work_s
        return _UNKNOWN_WORK_S if work_s is None else max(_MIN_WORK_S, work_s - self.task.progress_s(self.now))

    def stay_s(self, offer: Offer) -> float:
        """The mean time that the task would run on `offer`: until the machine is lost or the work is done."""
        if offer.market is _ON_DEMAND:
            return self.work_left_s
        key = offer.key
        stay_s = self._stays.get(key)
        if stay_s is None:
            work_s = self.work_left_s
            stay_s = self._stays[key] = -work_s * expm1(-self.history.life_s(key, self.now) / work_s)
        return stay_s

    def hourly_cost(self, offer: Offer) -> float:
        """Per hour of work and node, including the start-ups after losses, for a task that runs there already."""
        if offer.market is _ON_DEMAND:
            return offer.price_per_hour
        return offer.price_per_hour * (1 + self.history.startup_times.mean_s / self.stay_s(offer))

    def entry_cost(self, offer: Offer) -> float:
        """Per node, for the start there, including the transfer of the task's data."""
        home = self.task.home
        leaves_home = home is not None and home != (offer.cloud, offer.region)
        transfer = self.task.recovery.move_cost / self.task.num_nodes if leaves_home else 0.0
        return offer.price_per_hour * self.history.startup_times.mean_s / _HOUR_S + transfer

    def total_cost(self, offer: Offer) -> float:
        """Per hour of work and node, with the entry cost spread over the stay. Never below the price."""
        return offer.price_per_hour + self.entry_cost(offer) * _HOUR_S / self.stay_s(offer)

    def gain(self, here: Offer, there: Offer) -> float:
        """What a move saves per node, less its cost and a safety margin. A move pays if this is positive."""
        stay_s = self.stay_s(there) - self.history.startup_times.mean_s
        savings = (self.hourly_cost(here) - self.hourly_cost(there)) * max(0.0, stay_s) / _HOUR_S
        return savings - _MOVE_MARGIN * self.entry_cost(there)
