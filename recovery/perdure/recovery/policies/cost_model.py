"""What an offer really costs a task (price, start, restarts after losses), and what a move to another one saves."""

from __future__ import annotations

from collections.abc import Iterable
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
    slack_price: float = 0.0  # per hour of slack that losses cost, and node: see `price_of_slack`
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

    @cached
    def loss_s(self) -> float:
        """The slack that a loss costs: a start, and the work since the last checkpoint, by the task's own record."""
        task = self.task
        undone_s = max(0.0, task.run_seconds - task.durable_s) / max(1, task.recovery_count)
        return self.history.startup_times.mean_s + undone_s

    def slack_share(self, offer: Offer) -> float:
        """The slack that losses on `offer` are expected to cost, per unit of work there."""
        return 0.0 if offer.market is _ON_DEMAND else self.loss_s / self.history.life_s(offer.key, self.now)

    def hourly_cost(self, offer: Offer) -> float:
        """Per hour of work and node, including the start-ups after losses, for a task that runs there already."""
        if offer.market is _ON_DEMAND:
            return offer.price_per_hour
        hourly = offer.price_per_hour * (1 + self.history.startup_times.mean_s / self.stay_s(offer))
        return hourly + self._slack_cost(offer)

    def entry_cost(self, offer: Offer) -> float:
        """Per node, for the start there, including the transfer of the task's data."""
        home = self.task.home
        leaves_home = home is not None and home != (offer.cloud, offer.region)
        transfer = self.task.recovery.move_cost / self.task.num_nodes if leaves_home else 0.0
        return offer.price_per_hour * self.history.startup_times.mean_s / _HOUR_S + transfer

    def total_cost(self, offer: Offer) -> float:
        """Per hour of work and node, with the entry cost spread over the stay. Never below the price."""
        return offer.price_per_hour + self.entry_cost(offer) * _HOUR_S / self.stay_s(offer) + self._slack_cost(offer)

    def gain(self, here: Offer, there: Offer) -> float:
        """What a move saves per node, less its cost and a safety margin. A move pays if this is positive."""
        stay_s = self.stay_s(there) - self.history.startup_times.mean_s
        savings = (self.hourly_cost(here) - self.hourly_cost(there)) * max(0.0, stay_s) / _HOUR_S
        return savings - _MOVE_MARGIN * self.entry_cost(there)

    def _slack_cost(self, offer: Offer) -> float:
        """Per hour of work and node: the value of the slack that losses on `offer` cost."""
        return self.slack_price * self.slack_share(offer) if self.slack_price else 0.0


def price_of_slack(costs: CostModel, spot: Iterable[Offer], on_demand_price: float, slack_s: float) -> float:
    """What another hour of slack would save, in USD per node; 0 if slack suffices for the cheapest of `spot`.

    The remaining work is divided among on-demand, which costs no slack, and spot offers, which cost it by their losses,
    so that it costs least and `slack_s` covers the losses. That is a linear program with two constraints: its solution
    lies on the lower convex hull of the offers' prices over their `slack_share`, and the price of slack is the slope of
    the hull at the share that there is.
    """
    share = max(0.0, slack_s) / costs.work_left_s
    points = [(costs.slack_share(offer), offer.price_per_hour) for offer in spot]
    used, price = 0.0, on_demand_price
    while True:
        steeper = [((price - p) / (s - used), s, p) for s, p in points if s > used and p < price]
        if not steeper:
            return 0.0
        slope, used, price = max(steeper)
        if used >= share:
            return slope
