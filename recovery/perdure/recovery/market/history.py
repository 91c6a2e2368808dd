"""What is known of offers' availability: one history from the launches, failures, preemptions and probes of all jobs.

A policy reads it from `MarketView.history`. It is a value: `with_observation` returns a new one. Old evidence fades, so
an offer that was volatile for a week is trusted again later.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from functools import lru_cache
from math import erf, exp, inf, log

from perdure.recovery.frozen import cached, dataclass, replace
from perdure.recovery.market.offers import OfferKey
from perdure.recovery.market.survival import cumulative_hazard, remaining_life_s

# The weight of evidence halves in this time.
_HALF_LIFE_S = 3 * 86400.0

# Between two observations this close, nothing is likely to have happened.
_CONTINUOUS_S = 900.0

# The weight of the prior, in losses: for a region and, starting from the region's rate, for an offer in it.
_PRIOR_LOSSES = 4.0

# The weight of a cloud's advice, in losses, and how long it holds. Four observed losses outweigh it.
_ADVISED_LOSSES = 2.0
_ADVICE_S = 6 * 3600.0

# The rate of an offer after a rebalance recommendation for one of its machines.
_REBALANCE_RATE = 4.0

# After a preemption in one zone, its region's other zones are preempted four times as often as zones elsewhere. For
# this long, the whole region counts as this many times as volatile.
_SHOCK_S = 1800.0
_SHOCK = 2.0

# The prior of start-up times: a log-normal law with this median and sigma, and their weights in observations.
_START_MEDIAN_S = 640.0
_START_SIGMA = 0.5
_MEDIAN_WEIGHT = 3.0
_SIGMA_WEIGHT = 5.0
_WORST_SIGMAS = 3.5

# The rate of interruptions falls with an offer's age. This is the span that `mean_uptime_s` looks ahead.
_FORESEEN_S = 3600.0

# The age of an offer of which nothing is known: most likely it has been available for a while.
_UNKNOWN_AGE_S = 2 * 3600.0

# The share of time for which an offer is available, before anything is known of it, and the weight of that prior.
_PRIOR_SHARE = 0.65
_PRIOR_SHARE_S = 8 * 3600.0

# An observation says nothing about an offer for longer than this before and after it.
_INTERPOLATED_S = 3600.0


@dataclass(frozen=True)
class OfferObservation:
    """Whether an offer was available at a moment: launched, held or probed, or else refused or preempted."""

    key: OfferKey
    at: float  # epoch seconds
    available: bool
    held_since: float | None = None  # a machine was held there from then on
    started_s: float | None = None  # how long its start took, from the request to permission to run


@dataclass(frozen=True)
class Advice:
    """A cloud's statement that an offer loses machines `rate` times as often as usual."""

    key: OfferKey
    at: float  # epoch seconds
    rate: float


@dataclass(frozen=True)
class Losses:
    """Losses that happened, and losses that the prior expected meanwhile. Both fade with time."""

    at: float = 0.0  # the moment that both numbers refer to
    lost: float = 0.0
    expected: float = 0.0

    def plus(self, at: float, lost: float, expected: float) -> Losses:
        if at <= self.at:
            return Losses(self.at, self.lost + lost, self.expected + expected)
        fading = 2.0 ** ((self.at - at) / _HALF_LIFE_S)
        return Losses(at, self.lost * fading + lost, self.expected * fading + expected)

    def rate(self, prior: float, advised: float | None = None) -> float:
        """Losses per expected loss, shrunk towards `prior` and, if given, towards the rate that the cloud advises."""
        shape, weight = self.law(prior, advised)
        return shape / weight

    def law(self, prior: float, advised: float | None = None) -> tuple[float, float]:
        """What is known of the rate: a gamma distribution, as its shape and its rate. Its mean is `rate`."""
        if advised is None:
            return _PRIOR_LOSSES * prior + self.lost, _PRIOR_LOSSES + self.expected
        known = _PRIOR_LOSSES * prior + _ADVISED_LOSSES * advised
        return known + self.lost, _PRIOR_LOSSES + _ADVISED_LOSSES + self.expected


_NO_LOSSES = Losses()


@dataclass(frozen=True)
class OfferTrack:
    """The record of one offer."""

    available: bool  # when it was last observed
    since: float  # since when that has been so, as far as known
    seen_at: float  # when it was last observed
    losses: Losses = Losses()
    up_s: float = 0.0  # how long it is known to have been available, and unavailable; both fade up to `seen_at`
    down_s: float = 0.0

    def age_s(self, now: float) -> float:
        """How long the offer has been available, if it is available now."""
        unseen_s = now - self.seen_at
        if self.available and unseen_s <= max(_CONTINUOUS_S, self.seen_at - self.since):
            return now - self.since
        return unseen_s / 2  # it became available at an unknown moment since then


@dataclass(frozen=True)
class RegionTrack:
    """The record of all offers of a region together."""

    losses: Losses = Losses()
    lost_at: float = -inf  # when it last lost a machine


_NEW_REGION = RegionTrack()


@dataclass(frozen=True)
class StartupTimes:
    """Logarithms of start-up times: how many were observed, their sum, and the sum of their squares."""

    count: float = 0.0
    total: float = 0.0
    squares: float = 0.0

    def plus(self, seconds: float) -> StartupTimes:
        x = log(max(1.0, seconds) / _START_MEDIAN_S)
        return StartupTimes(self.count + 1, self.total + x, self.squares + x * x)

    @cached
    def _law(self) -> tuple[float, float]:
        """Mean and variance of the logarithms, in units of the prior's median."""
        # The variance is taken about the observed mean: its distance from the prior's mean says nothing about it.
        about_mean = max(0.0, self.squares - self.total**2 / self.count) if self.count else 0.0
        variance = (_SIGMA_WEIGHT * _START_SIGMA**2 + about_mean) / (_SIGMA_WEIGHT + self.count)
        return self.total / (_MEDIAN_WEIGHT + self.count), variance

    @cached
    def mean_s(self) -> float:
        mean, variance = self._law
        return _START_MEDIAN_S * exp(mean + variance / 2)

    @property
    def sigma(self) -> float:
        """The standard deviation of the logarithms."""
        return float(self._law[1] ** 0.5)

    @cached
    def worst_s(self) -> float:
        """Longer than all but a handful of start-ups in ten thousand, including the uncertainty of the mean."""
        return self._at_sigmas(_WORST_SIGMAS)

    def within_s(self, share: float) -> float:
        """The time within which a `share` of start-ups (from 0.5 to 1) end; never more than `worst_s`."""
        return self._at_sigmas(_sigmas(share))

    def _at_sigmas(self, sigmas: float) -> float:
        mean, variance = self._law
        total_variance = variance * (1 + 1 / (_MEDIAN_WEIGHT + self.count))
        return _START_MEDIAN_S * exp(mean + sigmas * total_variance**0.5)


@lru_cache(maxsize=64)
def _sigmas(share: float) -> float:
    """The quantile of the standard normal law, by bisection, for a share from 0.5; never above `_WORST_SIGMAS`."""
    low, high = 0.0, _WORST_SIGMAS
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if (1 + erf(middle / 2**0.5)) / 2 < share else (low, middle)
    return high


@dataclass(frozen=True)
class History:
    """The records of all offers. Immutable; every query costs one or two look-ups."""

    tracks: Mapping[OfferKey, OfferTrack] = field(default_factory=dict)
    regions: Mapping[tuple[str, str], RegionTrack] = field(default_factory=dict)  # by cloud and region
    startup_times: StartupTimes = StartupTimes()
    advice: Mapping[OfferKey, Advice] = field(default_factory=dict)

    def track(self, key: OfferKey) -> OfferTrack | None:
        return self.tracks.get(key)

    def volatility(self, key: OfferKey, now: float) -> float:
        """How often `key` loses machines, as a multiple of what the prior predicts."""
        region = self.regions.get((key.cloud, key.region))
        rate = region.losses.rate(1.0) if region else 1.0
        if region and now - region.lost_at < _SHOCK_S:
            rate *= _SHOCK
        track, advised = self.tracks.get(key), self.advised_rate(key, now)
        if advised is not None:
            return (track.losses if track else _NO_LOSSES).rate(rate, advised)
        return track.losses.rate(rate) if track else rate

    def advised_rate(self, key: OfferKey, now: float) -> float | None:
        """How often `key` loses machines by its cloud's advice, as a multiple; None without recent advice."""
        advice = self.advice.get(key)
        return advice.rate if advice is not None and now - advice.at < _ADVICE_S else None

    def availability(self, key: OfferKey, now: float) -> tuple[float, float]:
        """The share of time for which `key` is available, and the seconds of evidence for it, prior included."""
        track = self.tracks.get(key)
        if track is None:
            return _PRIOR_SHARE, _PRIOR_SHARE_S
        fading = 2.0 ** ((track.seen_at - now) / _HALF_LIFE_S) if now > track.seen_at else 1.0
        evidence_s = _PRIOR_SHARE_S + fading * (track.up_s + track.down_s)
        return (_PRIOR_SHARE * _PRIOR_SHARE_S + fading * track.up_s) / evidence_s, evidence_s

    def life_s(self, key: OfferKey, now: float) -> float:
        """The mean time that a machine of `key`, held now or launched now, will last."""
        return remaining_life_s(self._age_s(key, now), self.volatility(key, now))

    def mean_uptime_s(self, key: OfferKey, now: float) -> float:
        """The mean time between interruptions on machines of `key`, at the rate that is expected for the next hour.

        Shorter than `life_s`, to which the few machines contribute most that last very long.
        """
        age_s = self._age_s(key, now)
        losses = cumulative_hazard(age_s + _FORESEEN_S) - cumulative_hazard(age_s)
        return _FORESEEN_S / (losses * self.volatility(key, now))

    def _age_s(self, key: OfferKey, now: float) -> float:
        track = self.tracks.get(key)
        return track.age_s(now) if track else _UNKNOWN_AGE_S


def rebalance_advice(key: OfferKey, now: float) -> Advice:
    """The advice that a cloud's rebalance recommendation for a machine of `key` amounts to."""
    return Advice(key, now, _REBALANCE_RATE)


def with_advice(history: History, advice: Iterable[Advice]) -> History:
    """`history` with clouds' advice added. Of each offer, the newest advice counts."""
    known = dict(history.advice)
    for one in advice:
        before = known.get(one.key)
        if before is None or before.at <= one.at:
            known[one.key] = one
    return replace(history, advice=known)


def with_observation(history: History, observation: OfferObservation) -> History:
    """`history` with `observation` added. If it is older than its offer's newest, only its start-up time counts."""
    return with_observations(history, (observation,))


def with_observations(history: History, observations: Iterable[OfferObservation]) -> History:
    """`with_observation` for each of these in turn. It copies the history once, however many they are."""
    tracks, regions, startup_times = dict(history.tracks), dict(history.regions), history.startup_times
    for observation in observations:
        if observation.started_s is not None:
            startup_times = startup_times.plus(observation.started_s)
        track = tracks.get(observation.key)
        if track is not None and observation.at < track.seen_at:
            continue
        lost, expected = _evidence(track, observation)
        tracks[observation.key] = _updated(track, observation, lost, expected)
        place = (observation.key.cloud, observation.key.region)
        region = regions.get(place) or _NEW_REGION
        lost_at = observation.at if lost else region.lost_at
        regions[place] = RegionTrack(region.losses.plus(observation.at, lost, expected), lost_at)
    return History(tracks, regions, startup_times, history.advice)


def _evidence(track: OfferTrack | None, observation: OfferObservation) -> tuple[float, float]:
    """Losses observed and losses expected between the last observation and this one."""
    if track is None:
        begin, age_s = observation.held_since, 0.0
    else:
        begin = track.seen_at if track.available and observation.at - track.seen_at <= _CONTINUOUS_S else None
        begin = max(track.seen_at, observation.held_since) if observation.held_since is not None else begin
        age_s = track.age_s(begin) if begin is not None else 0.0
    if begin is None:
        return 0.0, 0.0
    # Not negative, even if the machine was held "since" a later moment because the clock went back.
    expected = max(0.0, cumulative_hazard(age_s + observation.at - begin) - cumulative_hazard(age_s))
    return float(not observation.available), expected


def _updated(track: OfferTrack | None, observation: OfferObservation, lost: float, expected: float) -> OfferTrack:
    losses = (track.losses if track else _NO_LOSSES).plus(observation.at, lost, expected)
    since = observation.at
    if observation.available:
        since = min(since if track is None else since - track.age_s(since), observation.held_since or since)
    elif track is not None and not track.available:
        since = track.since
    up_s, down_s = _times(track, observation)
    return OfferTrack(observation.available, since, observation.at, losses, up_s, down_s)


def _times(track: OfferTrack | None, observation: OfferObservation) -> tuple[float, float]:
    """For how long the offer is known to have been available and unavailable, up to `observation`."""
    at, held_since = observation.at, observation.held_since
    if track is None:
        return (max(0.0, at - held_since) if held_since is not None else 0.0), 0.0
    held_s = max(0.0, at - max(track.seen_at, held_since)) if held_since is not None else 0.0
    # Between two observations, the offer is assumed to have changed halfway, if it has.
    between_s = min(_INTERPOLATED_S, max(0.0, at - track.seen_at - held_s))
    was_up = observation.available or held_since is not None
    up_s = held_s + between_s * (track.available + was_up) / 2
    fading = 2.0 ** ((track.seen_at - at) / _HALF_LIFE_S)
    return track.up_s * fading + up_s, track.down_s * fading + between_s + held_s - up_s
