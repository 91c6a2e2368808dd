"""What is known of offers' availability: one history from the launches, refusals, preemptions and probes of all jobs.

A policy reads it from `MarketView.history`. It is a value; `learn` returns a new one. Old evidence fades: a volatile
week is known while it lasts and forgiven afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from math import exp, inf, log

from perdure.recovery.offers import OfferKey
from perdure.recovery.survival import cumulative_hazard, remaining_life_s
from perdure.recovery.values import cached, dataclass, replace

# Evidence counts half after this long.
_HALF_LIFE_S = 3 * 86400.0

# Two looks so close that nothing is likely to have happened between them.
_CONTINUOUS_S = 900.0

# How many losses the prior is worth, for a region and, of the region's rate, for an offer in it.
_PRIOR_LOSSES = 4.0

# How many losses a cloud's own word is worth, and for how long: it is evidence, and four losses seen outweigh it.
_ADVISED_LOSSES = 2.0
_ADVICE_S = 6 * 3600.0

# The rate of an offer whose cloud recommends to leave a machine of it.
_AT_RISK = 4.0

# A zone's neighbours are taken together with it four times as often as zones elsewhere: the region is avoided so long.
_SHOCK_S = 1800.0
_SHOCK = 2.0

# Start-up times before any was seen: log-normal, median and spread, each worth so many observations.
_START_MEDIAN_S = 640.0
_START_SIGMA = 0.5
_MEDIAN_WEIGHT = 3.0
_SPREAD_WEIGHT = 5.0
_WORST_SIGMAS = 3.5


@dataclass(frozen=True)
class Sighting:
    """At `at` (epoch seconds) `key` could be bought or kept (`available`), or not: refused, taken back.

    `held_since`: a machine was held there from then on. `started_s`: it took so long from request to leave to run.
    """

    key: OfferKey
    at: float
    available: bool
    held_since: float | None = None
    started_s: float | None = None


@dataclass(frozen=True)
class Advice:
    """At `at` (epoch seconds) its cloud said that `key` loses machines `rate` times as often as is usual."""

    key: OfferKey
    at: float
    rate: float


@dataclass(frozen=True)
class Losses:
    """Machines lost, and how many losses the prior expected meanwhile. Both fade; as of `at`."""

    at: float = 0.0
    lost: float = 0.0
    expected: float = 0.0

    def plus(self, at: float, lost: float, expected: float) -> Losses:
        if at <= self.at:
            return Losses(self.at, self.lost + lost, self.expected + expected)
        fading = 2.0 ** ((self.at - at) / _HALF_LIFE_S)
        return Losses(at, self.lost * fading + lost, self.expected * fading + expected)

    def rate(self, prior: float, advised: float | None = None) -> float:
        """Losses per loss expected. `advised`: what a cloud says of it."""
        if advised is None:
            return (_PRIOR_LOSSES * prior + self.lost) / (_PRIOR_LOSSES + self.expected)
        known = _PRIOR_LOSSES * prior + _ADVISED_LOSSES * advised
        return (known + self.lost) / (_PRIOR_LOSSES + _ADVISED_LOSSES + self.expected)


_NOTHING_SEEN = Losses()


@dataclass(frozen=True)
class Track:
    """One offer. `since`: when it became as it was last seen, as far as known; `seen_at`: when that was."""

    available: bool
    since: float
    seen_at: float
    losses: Losses = Losses()

    def age_s(self, now: float) -> float:
        """For how long the offer has been there, if it is there now."""
        unseen_s = now - self.seen_at
        if self.available and unseen_s <= max(_CONTINUOUS_S, self.seen_at - self.since):
            return now - self.since
        return unseen_s / 2  # it came, or came back, at some time since


@dataclass(frozen=True)
class Region:
    """All offers of a region together. `lost_at`: when it last took a machine."""

    losses: Losses = Losses()
    lost_at: float = -inf


_NOTHING_LOST = Region()


@dataclass(frozen=True)
class StartUps:
    """Logarithms of start-up times: how many were seen, their sum, and the sum of their squares."""

    count: float = 0.0
    total: float = 0.0
    squares: float = 0.0

    def plus(self, seconds: float) -> StartUps:
        x = log(max(1.0, seconds) / _START_MEDIAN_S)
        return StartUps(self.count + 1, self.total + x, self.squares + x * x)

    @cached
    def _law(self) -> tuple[float, float]:
        # The spread is that about the mean of those seen: how far they are from the guess says nothing of it.
        about_mean = max(0.0, self.squares - self.total**2 / self.count) if self.count else 0.0
        variance = (_SPREAD_WEIGHT * _START_SIGMA**2 + about_mean) / (_SPREAD_WEIGHT + self.count)
        return self.total / (_MEDIAN_WEIGHT + self.count), variance

    @cached
    def usual_s(self) -> float:
        mean, variance = self._law
        return _START_MEDIAN_S * exp(mean + variance / 2)

    @property
    def sigma(self) -> float:
        """The spread of their logarithms."""
        return float(self._law[1] ** 0.5)

    @cached
    def worst_s(self) -> float:
        """Longer than all but a few start-ups in ten thousand, the doubt about their mean counted in."""
        mean, variance = self._law
        doubtful = variance * (1 + 1 / (_MEDIAN_WEIGHT + self.count))
        return _START_MEDIAN_S * exp(mean + _WORST_SIGMAS * doubtful**0.5)


@dataclass(frozen=True)
class History:
    """Immutable; every question costs a look-up or two."""

    tracks: Mapping[OfferKey, Track] = field(default_factory=dict)
    regions: Mapping[tuple[str, str], Region] = field(default_factory=dict)
    start_ups: StartUps = StartUps()
    advice: Mapping[OfferKey, Advice] = field(default_factory=dict)

    def track(self, key: OfferKey) -> Track | None:
        return self.tracks.get(key)

    def volatility(self, key: OfferKey, now: float) -> float:
        """How many times as often as the prior says `key` loses machines."""
        region = self.regions.get((key.cloud, key.region))
        rate = region.losses.rate(1.0) if region else 1.0
        if region and now - region.lost_at < _SHOCK_S:
            rate *= _SHOCK
        track, advice = self.tracks.get(key), self.advice.get(key)
        if advice is not None and now - advice.at < _ADVICE_S:
            return (track.losses if track else _NOTHING_SEEN).rate(rate, advice.rate)
        return track.losses.rate(rate) if track else rate

    def life_s(self, key: OfferKey, now: float) -> float:
        """The mean time that a machine of `key`, held now or bought now, will last."""
        track = self.tracks.get(key)
        return remaining_life_s(track.age_s(now) if track else _UNKNOWN_AGE_S, self.volatility(key, now))


# An offer of which nothing is known has most likely been there for a while.
_UNKNOWN_AGE_S = 2 * 3600.0


def at_risk(key: OfferKey, now: float) -> Advice:
    """What a cloud says that recommends to leave a machine of `key`."""
    return Advice(key, now, _AT_RISK)


def advised(history: History, advice: Iterable[Advice]) -> History:
    """`history` with what clouds say added: of each offer, the newest counts."""
    known = dict(history.advice)
    for one in advice:
        before = known.get(one.key)
        if before is None or before.at <= one.at:
            known[one.key] = one
    return replace(history, advice=known)


def learn(history: History, sighting: Sighting) -> History:
    """`history` with one sighting more. Of one older than the newest of its offer only the start-up time counts."""
    start_ups = history.start_ups
    if sighting.started_s is not None:
        start_ups = start_ups.plus(sighting.started_s)
    known = history.tracks.get(sighting.key)
    if known is not None and sighting.at < known.seen_at:
        return replace(history, start_ups=start_ups)
    lost, expected = _evidence(known, sighting)
    place = (sighting.key.cloud, sighting.key.region)
    tracks = {**history.tracks, sighting.key: _seen(known, sighting, lost, expected)}
    region = history.regions.get(place) or _NOTHING_LOST
    lost_at = sighting.at if lost else region.lost_at
    regions = {**history.regions, place: Region(region.losses.plus(sighting.at, lost, expected), lost_at)}
    return History(tracks, regions, start_ups, history.advice)


def _evidence(known: Track | None, sighting: Sighting) -> tuple[float, float]:
    """Losses seen and losses expected between the last look and this one."""
    if known is None:
        begin, age_s = sighting.held_since, 0.0
    else:
        begin = known.seen_at if known.available and sighting.at - known.seen_at <= _CONTINUOUS_S else None
        begin = max(known.seen_at, sighting.held_since) if sighting.held_since is not None else begin
        age_s = known.age_s(begin) if begin is not None else 0.0
    if begin is None:
        return 0.0, 0.0
    expected = cumulative_hazard(age_s + sighting.at - begin) - cumulative_hazard(age_s)
    return float(not sighting.available), expected


def _seen(known: Track | None, sighting: Sighting, lost: float, expected: float) -> Track:
    losses = (known.losses if known else _NOTHING_SEEN).plus(sighting.at, lost, expected)
    since = sighting.at
    if sighting.available:
        since = min(since if known is None else since - known.age_s(since), sighting.held_since or since)
    elif known is not None and not known.available:
        since = known.since
    return Track(sighting.available, since, sighting.at, losses)
