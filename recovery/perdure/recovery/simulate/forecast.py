"""What a task that is about to be launched will most likely cost, and when it will be done.

The simulator's own world, with markets that are drawn instead of recorded: how long each offer is there follows the law
that the policies believe in, with what this controller has learned of each; how long it is away, what was recorded.
Offers are drawn one by one: that neighbours are often lost together is left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import exp, gamma
from random import Random

from perdure.recovery.history import History, Region, Track
from perdure.recovery.job import JobView, TaskView
from perdure.recovery.market import MarketView
from perdure.recovery.matching import fitting
from perdure.recovery.needs import Need
from perdure.recovery.offers import Market, Offer, OfferKey
from perdure.recovery.simulate.cloud import NAME, TraceCloud
from perdure.recovery.simulate.scenario import Run, Scenario
from perdure.recovery.simulate.traces import ZoneTrace
from perdure.recovery.simulate.world import World
from perdure.recovery.survival import SCALE_S, SHAPE

# How long an offer that went away stays away: log-normal, fitted to the first half of the recorded V100 zones.
_AWAY_MEDIAN_S = 2800.0
_AWAY_SIGMA = 1.35

# What a sighting says of now, when it is older than this, is next to nothing.
_FRESH_S = 3600.0

# A task that has said nothing yet is taken to save every half hour: its runs lose a quarter of an hour on average.
CHECKPOINT_EVERY_S = 1800.0

_TICK_S = 300
_MOST_OFFERS = 8
# Of runs that have not ended by then it is not told when they end.
_PATIENT = 3.0
_AT_LEAST_S = 24 * 3600.0


@dataclass(frozen=True)
class Spread:
    """The mean of a quantity, and what it is below and above in one case of ten each."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Forecast:
    """Over `runs` drawn markets: USD, seconds from launch to end, preemptions, and the share that was late.

    `seconds` is None where too many runs had not ended after three times the work.
    """

    runs: int
    cost: Spread
    seconds: Spread | None
    preemptions: float
    late: float


def draws(task: TaskView, market: MarketView, now: float, *, seed: int = 0) -> Iterator[Run]:
    """Runs of `task`, launched `now`, each in a market of its own, without end. Its `recovery.work_s` is needed.

    `market` has to hold an offer that fits: see `Policy.choose`.
    """
    work_s = task.recovery.work_s
    assert work_s is not None
    offers = _candidates(task, market.offers)
    horizon_s = max(_PATIENT * work_s, work_s + _AT_LEAST_S, (task.recovery.deadline_at or now) - now + _AT_LEAST_S)
    random = Random(seed)  # noqa: S311 - a simulation, nothing secret
    place = TaskView(0, _needs(offers), num_nodes=task.num_nodes, recovery=task.recovery, wake_at=now)
    history = _renamed(market.history, [offer for _, offer in offers])
    start_ups = market.history.start_ups
    while True:
        zones = tuple(_drawn(o, price, market, now, horizon_s, task.num_nodes, random) for o, price in _pairs(offers))
        scenario = Scenario(
            zones,
            work_s=max(1, round(work_s)),
            cold_start_s=max(1, round(start_ups.usual_s)),
            cold_start_sigma=start_ups.sigma,
            checkpoint_every_s=CHECKPOINT_EVERY_S,
            num_nodes=task.num_nodes,
            egress_per_gb=task.recovery.move_cost,
            checkpoint_gb=1.0,
            seed=random.getrandbits(32),
        )
        world = World(TraceCloud(scenario), task.recovery.strategy, now)
        world.job, world.history = JobView(1, (place,)), history
        yield world.run()


def summary(runs: Sequence[Run], deadline_s: float | None) -> Forecast:
    """What `runs`, one at least, have in common. `deadline_s`: from the launch."""
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
    tail = len(ordered) // 10
    return Spread(sum(ordered) / len(ordered), ordered[tail], ordered[-1 - tail])


# --- the market -------------------------------------------------------------------------------------------------------


def _candidates(task: TaskView, offers: tuple[Offer, ...]) -> list[tuple[int, Offer]]:
    """The offers that the task is likely to meet: the first of each zone, by rank and price."""
    found: dict[tuple[str, str, str, Market], tuple[int, Offer]] = {}
    for rank, o in fitting(task.needs, offers):
        found.setdefault((o.cloud, o.region, o.zone, o.market), (rank, o))
    return list(found.values())[:_MOST_OFFERS]


def _pairs(offers: Sequence[tuple[int, Offer]]) -> list[tuple[Offer, float]]:
    """Each place and machine once, as its cheapest offer, with its on-demand price."""
    found: dict[tuple[str, str], Offer] = {}
    for _, offer in offers:
        known = found.setdefault(_place(offer.key), offer)
        if offer.market is Market.SPOT and known.market is not Market.SPOT:
            found[_place(offer.key)] = offer
    return [(offer, offer.on_demand_price_per_hour or offer.price_per_hour) for offer in found.values()]


def _place(key: OfferKey) -> tuple[str, str]:
    """The region and zone that stand for an offer's cloud, place and machine in the drawn market."""
    return f"{key.cloud}/{key.region}", f"{key.cloud}/{key.region}/{key.zone}/{key.instance_type}"


def _needs(offers: Sequence[tuple[int, Offer]]) -> tuple[Need, ...]:
    return tuple(
        Need(region=region, zone=zone, instance_type=o.instance_type, use_spot=o.market is Market.SPOT, rank=rank)
        for rank, o in offers
        for region, zone in (_place(o.key),)
    )


def _renamed(history: History, offers: Sequence[Offer]) -> History:
    """What is known of `offers`, under the names that stand for them."""
    tracks: dict[OfferKey, Track] = {}
    regions: dict[tuple[str, str], Region] = {}
    for offer in offers:
        region, zone = _place(offer.key)
        if (track := history.tracks.get(offer.key)) is not None:
            tracks[OfferKey(NAME, region, zone, offer.instance_type, offer.market)] = track
        if (known := history.regions.get((offer.key.cloud, offer.key.region))) is not None:
            regions[(NAME, region)] = known
    return History(tracks, regions, history.start_ups)


def _drawn(
    offer: Offer, on_demand: float, market: MarketView, now: float, horizon_s: float, nodes: int, random: Random
) -> ZoneTrace:
    region, zone = _place(offer.key)
    ticks = int(horizon_s // _TICK_S) + 1
    there = _presence(offer, market, now, ticks, random) if offer.market is Market.SPOT else [0] * ticks
    return ZoneTrace(
        zone=zone,
        region=region,
        instance_type=offer.instance_type,
        start_at=now,
        gap_s=_TICK_S,
        counts=tuple(nodes * there_then for there_then in there),
        prices=(offer.price_per_hour,) * ticks,
        on_demand_price=on_demand,
    )


def _presence(offer: Offer, market: MarketView, now: float, ticks: int, random: Random) -> list[int]:
    """Tick by tick: 1 where the offer is there, 0 where it is not."""
    volatility = market.history.volatility(offer.key, now)
    there, age_s = _begins(offer, market, now, volatility, random)
    found: list[int] = []
    while len(found) < ticks:
        length_s = _life_s(age_s, volatility, random) if there else _away_s(random)
        found += [int(there)] * max(1, round(min(length_s, ticks * _TICK_S) / _TICK_S))
        there, age_s = not there, 0.0
    return found[:ticks]


def _begins(offer: Offer, market: MarketView, now: float, volatility: float, random: Random) -> tuple[bool, float]:
    """Whether the offer is there at the start, and for how long it has been."""
    if any(r.until > now and r.covers(offer) for r in market.refusals):
        return False, 0.0
    track = market.history.tracks.get(offer.key)
    if track is not None and now - track.seen_at < _FRESH_S:
        return track.available, track.age_s(now)
    there_s = SCALE_S * volatility ** (-1 / SHAPE) * gamma(1 + 1 / SHAPE)
    away_s = _AWAY_MEDIAN_S * exp(_AWAY_SIGMA**2 / 2)
    return random.random() < there_s / (there_s + away_s), track.age_s(now) if track else _FRESH_S


def _away_s(random: Random) -> float:
    return _AWAY_MEDIAN_S * random.lognormvariate(0.0, _AWAY_SIGMA)


def _life_s(age_s: float, volatility: float, random: Random) -> float:
    """How much longer what has lived for `age_s` lives."""
    hazard = (age_s / SCALE_S) ** SHAPE + random.expovariate(1.0) / volatility
    return float(SCALE_S * hazard ** (1 / SHAPE) - age_s)
