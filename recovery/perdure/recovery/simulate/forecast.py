"""What a task that is about to be launched will probably cost, and when it will be done.

The simulator's own world on random markets: how long each offer stays available follows the law that the policies use,
with what this controller has observed of each offer; how long it is unavailable follows the recordings. Offers are
drawn independently of each other: that zones of one region are often lost together is left out.

How volatile offers are is not known exactly, so each run draws that, too, from what the history leaves open. Otherwise
forecasts would be too narrow (`python -m benchmarks.forecasts`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import erfc, exp, gamma, log, prod
from random import Random

from perdure.recovery.job import JobView, TaskView
from perdure.recovery.market.fit import fitting_offers
from perdure.recovery.market.history import History, Losses, OfferTrack, RegionTrack
from perdure.recovery.market.offers import Market, Offer, OfferKey
from perdure.recovery.market.requirements import MachineRequirement
from perdure.recovery.market.survival import SCALE_S, SHAPE
from perdure.recovery.market.view import MarketView
from perdure.recovery.simulate.cloud import NAME, TraceCloud
from perdure.recovery.simulate.scenario import Run, Scenario
from perdure.recovery.simulate.traces import ZoneTrace
from perdure.recovery.simulate.world import World

# How long an offer stays unavailable: log-normal, fitted to the first half of the recorded V100 zones.
_AWAY_MEDIAN_S = 2800.0
_AWAY_SIGMA = 1.35

# Markets differ in how long offers are away: the medians of V100s and H100s were 0.49 h and 0.17 h, whose logarithms
# have this standard deviation.
_AWAY_MARKET_SIGMA = 0.75

# An observation older than this says next to nothing about the present.
_OBSERVATION_MAX_AGE_S = 3600.0

# A task is assumed to save every half hour: a loss costs a quarter of an hour on average.
CHECKPOINT_EVERY_S = 1800.0

# A gamma distribution yields numbers that are too small to divide by.
_MIN_VOLATILITY = 1e-3

_TICK_S = 300
_MAX_OFFERS = 8
# A value is drawn again until it agrees with what is known, but no more often than this.
_MAX_DRAWS = 200
# A run is simulated for at least this many times the work, and at least this long after the work or the deadline.
_HORIZON_FACTOR = 3.0
_MIN_HORIZON_S = 24 * 3600.0


@dataclass(frozen=True)
class Spread:
    """The mean of a quantity, and its 10 % and 90 % quantiles."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Forecast:
    """The result of `runs` simulations, each on its own random market."""

    runs: int
    cost: Spread  # USD
    seconds: Spread | None  # from launch to end; None if too many runs did not end within the simulated time
    preemptions: float  # mean
    late: float  # the share of runs that missed the deadline


def draw_runs(task: TaskView, market: MarketView, now: float, *, seed: int = 0) -> Iterator[Run]:
    """An endless sequence of runs of `task`, launched `now`, each on its own random market.

    Requires `task.recovery.work_s`, and an offer in `market` that fits.
    """
    work_s = task.recovery.work_s
    assert work_s is not None
    offers = _candidates(task, market.offers)
    horizon_s = max(
        _HORIZON_FACTOR * work_s, work_s + _MIN_HORIZON_S, (task.recovery.deadline_at or now) - now + _MIN_HORIZON_S
    )
    random = Random(seed)  # noqa: S311 - a simulation, nothing secret
    simulated = TaskView(0, _requirements(offers), num_nodes=task.num_nodes, recovery=task.recovery, wake_at=now)
    history = _renamed(market.history, [offer for _, offer in offers])
    startup_times = market.history.startup_times
    while True:
        laws = _Laws(market, now, random)
        zones = tuple(_draw_zone(o, price, laws, horizon_s, task.num_nodes) for o, price in _machines(offers))
        scenario = Scenario(
            zones,
            work_s=max(1, round(work_s)),
            cold_start_s=max(1, round(startup_times.mean_s)),
            cold_start_sigma=startup_times.sigma,
            checkpoint_every_s=CHECKPOINT_EVERY_S,
            num_nodes=task.num_nodes,
            egress_per_gb=task.recovery.move_cost,
            checkpoint_gb=1.0,
            seed=random.getrandbits(32),
        )
        world = World(TraceCloud(scenario), task.recovery.strategy, now)
        world.job, world.history = JobView(1, (simulated,)), history
        yield world.run()


def summarize_runs(runs: Sequence[Run], deadline_s: float | None) -> Forecast:
    """Summarize `runs`, at least one. `deadline_s`: from the launch."""
    ended = [run.finish_s for run in runs if run.finish_s is not None]
    return Forecast(
        runs=len(runs),
        cost=_spread([run.cost for run in runs]),
        seconds=_spread(ended) if len(ended) >= 0.9 * len(runs) else None,
        preemptions=sum(run.preemptions for run in runs) / len(runs),
        late=sum(run.is_late(deadline_s) for run in runs) / len(runs),
    )


def _spread(values: Sequence[float]) -> Spread:
    ordered = sorted(values)
    # One of n + 1 equally likely values lies below each of the n, so a tenth of them below this one.
    tail = max(0, round(0.1 * (len(ordered) + 1)) - 1)
    return Spread(sum(ordered) / len(ordered), ordered[tail], ordered[-1 - tail])


# --- the market -------------------------------------------------------------------------------------------------------


def _candidates(task: TaskView, offers: tuple[Offer, ...]) -> list[tuple[int, Offer]]:
    """The offers that the task will probably use: the first of each zone, by rank and price."""
    first: dict[tuple[str, str, str, Market], tuple[int, Offer]] = {}
    for rank, o in fitting_offers(task.requirements, offers):
        first.setdefault((o.cloud, o.region, o.zone, o.market), (rank, o))
    return list(first.values())[:_MAX_OFFERS]


def _machines(offers: Sequence[tuple[int, Offer]]) -> list[tuple[Offer, float]]:
    """Each zone and machine once, as its cheapest offer (spot, if there is one), with its on-demand price."""
    cheapest: dict[tuple[str, str], Offer] = {}
    for _, offer in offers:
        known = cheapest.setdefault(_zone_name(offer.key), offer)
        if offer.market is Market.SPOT and known.market is not Market.SPOT:
            cheapest[_zone_name(offer.key)] = offer
    return [(offer, offer.on_demand_price_per_hour or offer.price_per_hour) for offer in cheapest.values()]


def _zone_name(key: OfferKey) -> tuple[str, str]:
    """The region and zone that stand for an offer's cloud, zone and machine on the random market."""
    return f"{key.cloud}/{key.region}", f"{key.cloud}/{key.region}/{key.zone}/{key.instance_type}"


def _requirements(offers: Sequence[tuple[int, Offer]]) -> tuple[MachineRequirement, ...]:
    return tuple(
        MachineRequirement(
            region=region, zone=zone, instance_type=o.instance_type, use_spot=o.market is Market.SPOT, rank=rank
        )
        for rank, o in offers
        for region, zone in (_zone_name(o.key),)
    )


def _renamed(history: History, offers: Sequence[Offer]) -> History:
    """The history of `offers`, under the names that stand for them."""
    tracks: dict[OfferKey, OfferTrack] = {}
    regions: dict[tuple[str, str], RegionTrack] = {}
    for offer in offers:
        region, zone = _zone_name(offer.key)
        if (track := history.tracks.get(offer.key)) is not None:
            tracks[OfferKey(NAME, region, zone, offer.instance_type, offer.market)] = track
        if (known := history.regions.get((offer.key.cloud, offer.key.region))) is not None:
            regions[(NAME, region)] = known
    return History(tracks, regions, history.startup_times)


class _Laws:
    """The laws of one random market: how volatile each offer is, and how long offers are away."""

    def __init__(self, market: MarketView, now: float, random: Random) -> None:
        self.market, self.now, self.random = market, now, random
        self.away_median_s = self._away_median_s()
        self._regions: dict[tuple[str, str], float] = {}

    def volatility(self, key: OfferKey) -> float:
        """Drawn from what the history leaves open; the same in the mean as `History.volatility` long after a loss."""
        history, place = self.market.history, (key.cloud, key.region)
        if place not in self._regions:
            region = history.regions.get(place)
            self._regions[place] = self._rate((region.losses if region else Losses()).law(1.0))
        track, advised = history.tracks.get(key), history.advised_rate(key, self.now)
        if track is None and advised is None:
            return self._regions[place]
        return self._rate((track.losses if track else Losses()).law(self._regions[place], advised))

    def _rate(self, law: tuple[float, float]) -> float:
        shape, weight = law
        return max(_MIN_VOLATILITY, self.random.gammavariate(shape, 1 / weight))

    def away_for_s(self, key: OfferKey) -> float | None:
        """For how long the offer is known to have been away; None unless it was away when it was seen last."""
        track = self.market.history.tracks.get(key)
        is_away = track is not None and not track.available and self.now - track.seen_at < _OBSERVATION_MAX_AGE_S
        return self.now - track.since if track is not None and is_away else None

    def away_s(self, already_s: float = 0.0) -> float:
        """For how long an offer stays away, that has been away for `already_s`."""
        for _ in range(_MAX_DRAWS):
            seconds = self.away_median_s * self.random.lognormvariate(0.0, _AWAY_SIGMA)
            if seconds > already_s:
                return seconds - already_s
        return already_s

    def _away_median_s(self) -> float:
        """Drawn from what is open after the offers that are away now have been away for as long as they have."""
        known = [self.away_for_s(key) for key in self.market.history.tracks]
        ages_s = sorted((s for s in known if s), reverse=True)[:_MAX_OFFERS]
        for _ in range(_MAX_DRAWS):
            median_s = _AWAY_MEDIAN_S * self.random.lognormvariate(0.0, _AWAY_MARKET_SIGMA)
            likelihood = prod(erfc(log(age_s / median_s) / _AWAY_SIGMA / 2**0.5) / 2 for age_s in ages_s)
            if self.random.random() < likelihood:
                break
        return median_s


def _draw_zone(offer: Offer, on_demand: float, laws: _Laws, horizon_s: float, nodes: int) -> ZoneTrace:
    region, zone = _zone_name(offer.key)
    ticks = int(horizon_s // _TICK_S) + 1
    available = _availability(offer, laws, ticks) if offer.market is Market.SPOT else [0] * ticks
    return ZoneTrace(
        zone=zone,
        region=region,
        instance_type=offer.instance_type,
        start_at=laws.now,
        gap_s=_TICK_S,
        counts=tuple(nodes * is_available for is_available in available),
        prices=(offer.price_per_hour,) * ticks,
        on_demand_price=on_demand,
    )


def _availability(offer: Offer, laws: _Laws, ticks: int) -> list[int]:
    """By tick: 1 if the offer is available, else 0."""
    volatility = laws.volatility(offer.key)
    is_available, age_s = _initial_state(offer, laws, volatility)
    result: list[int] = []
    while len(result) < ticks:
        length_s = _life_s(age_s, volatility, laws.random) if is_available else laws.away_s(age_s)
        result += [int(is_available)] * max(1, round(min(length_s, ticks * _TICK_S) / _TICK_S))
        is_available, age_s = not is_available, 0.0
    return result[:ticks]


def _initial_state(offer: Offer, laws: _Laws, volatility: float) -> tuple[bool, float]:
    """Whether the offer is available at the start, and since how many seconds that has been so."""
    market, now = laws.market, laws.now
    if (away_s := laws.away_for_s(offer.key)) is not None:
        return False, away_s
    if any(r.until > now and r.covers(offer) for r in market.unavailable):
        return False, 0.0
    track = market.history.tracks.get(offer.key)
    if track is not None and now - track.seen_at < _OBSERVATION_MAX_AGE_S:
        return track.available, track.age_s(now)
    available_s = SCALE_S * volatility ** (-1 / SHAPE) * gamma(1 + 1 / SHAPE)
    mean_away_s = laws.away_median_s * exp(_AWAY_SIGMA**2 / 2)
    if laws.random.random() >= available_s / (available_s + mean_away_s):
        return False, 0.0
    return True, track.age_s(now) if track else _OBSERVATION_MAX_AGE_S


def _life_s(age_s: float, volatility: float, random: Random) -> float:
    """The remaining lifetime of an offer of age `age_s`."""
    hazard = (max(0.0, age_s) / SCALE_S) ** SHAPE + random.expovariate(1.0) / volatility
    return float(SCALE_S * hazard ** (1 / SHAPE) - age_s)
