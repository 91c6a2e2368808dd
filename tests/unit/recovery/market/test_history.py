"""The history of offers: what observations and advice change, and sensible values before any."""

from __future__ import annotations

from math import exp
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.recovery.market.history import (
    Advice,
    History,
    OfferObservation,
    StartupTimes,
    with_advice,
    with_observation,
    with_observations,
)
from perdure.recovery.market.survival import cumulative_hazard, remaining_life_s, survival
from perdure.recovery.market.view import Market, OfferKey

HOUR, DAY = 3600.0, 86400.0
KEY = OfferKey("aws", "east", "e1", "v", Market.SPOT)
NEIGHBOUR = OfferKey("aws", "east", "e2", "v", Market.SPOT)
FAR = OfferKey("aws", "west", "w1", "v", Market.SPOT)


def after(*observations: OfferObservation) -> History:
    history = History()
    for observation in observations:
        history = with_observation(history, observation)
    return history


def losses(key: OfferKey, count: int, every_s: float) -> list[OfferObservation]:
    """`count` machines in a row, each preempted after `every_s`."""
    return [
        s
        for i in range(count)
        for s in (
            OfferObservation(key, i * every_s + 1, available=True),
            OfferObservation(key, (i + 1) * every_s, available=False, held_since=i * every_s + 1),
        )
    ]


def test_remaining_life__is_integral_of_survival() -> None:
    for age_s in (0.0, HOUR, 20 * HOUR):
        step_s, total = 60.0, 0.0
        x = step_s / 2
        while survival(age_s, x) > 1e-4:
            total += survival(age_s, x) * step_s
            x += step_s
        assert remaining_life_s(age_s) == pytest.approx(total, rel=0.03)


@given(st.floats(0, 30 * DAY), st.floats(1, 30 * DAY), st.floats(0.2, 5))
def test_remaining_life__grows_with_age_and_shrinks_with_volatility(age_s: float, more_s: float, rate: float) -> None:
    assert remaining_life_s(age_s + more_s) >= remaining_life_s(age_s)
    assert remaining_life_s(age_s, rate * 1.1) < remaining_life_s(age_s, rate)
    assert survival(age_s, more_s, rate) == pytest.approx(
        exp(-rate * (cumulative_hazard(age_s + more_s) - cumulative_hazard(age_s)))
    )


def test_volatility__rises_with_losses_in_offer_and_region() -> None:
    now = 5 * HOUR
    history = after(OfferObservation(FAR, 0, available=True), *losses(KEY, 30, 600))
    assert history.volatility(KEY, now + DAY) > history.volatility(NEIGHBOUR, now + DAY) > 1
    assert history.volatility(FAR, now + DAY) == 1
    assert history.life_s(FAR, now) > history.life_s(KEY, now)


def test_volatility__falls_with_long_survival() -> None:
    history = after(
        OfferObservation(KEY, 0, available=True), OfferObservation(KEY, 5 * DAY, available=True, held_since=0)
    )
    assert history.volatility(KEY, 5 * DAY) < 1
    assert history.life_s(KEY, 5 * DAY) > 2 * DAY


def test_volatility__fades_with_time() -> None:
    history = after(*losses(KEY, 30, 600))
    recent = history.volatility(KEY, 6 * HOUR)
    for _ in range(2):
        history = with_observation(history, OfferObservation(KEY, 30 * DAY, available=True))
    assert history.volatility(KEY, 30 * DAY) == pytest.approx(1, abs=(recent - 1) / 4)


def test_volatility__of_region_rises_after_preemption() -> None:
    history = after(
        OfferObservation(NEIGHBOUR, 0, available=True),
        OfferObservation(KEY, 1, available=True),
        *losses(KEY, 1, 7 * HOUR),
    )
    assert history.volatility(NEIGHBOUR, 7 * HOUR + 60) > 1.5 * history.volatility(NEIGHBOUR, 9 * HOUR)


def test_track__restarts_age_after_unavailability() -> None:
    history = after(
        OfferObservation(KEY, 0, available=True),
        OfferObservation(KEY, 100 * HOUR, available=False),
        OfferObservation(KEY, 101 * HOUR, available=True),
    )
    track = history.track(KEY)
    assert track is not None
    assert 0 < track.age_s(101 * HOUR) <= HOUR


def test_with_observation__ignores_older_observation() -> None:
    history = after(OfferObservation(KEY, 100, available=True))
    assert with_observation(history, OfferObservation(KEY, 50, available=False)) == history


def test_with_observations__equals_one_after_the_other() -> None:
    random = Random(3)
    mixed = [
        OfferObservation(
            random.choice((KEY, NEIGHBOUR, FAR)),
            random.uniform(0.9, 1.0) * number * HOUR,  # some are late
            available=random.random() < 0.7,
            held_since=random.choice((None, max(0, number - 3) * HOUR)),
            started_s=random.choice((None, 60.0 * number + 1)),
        )
        for number in range(200)
    ]
    first = after(*mixed[:50])
    before = (dict(first.tracks), dict(first.regions))
    assert with_observations(first, iter(mixed[50:])) == after(*mixed)
    assert (first.tracks, first.regions) == before, "a history is a value"


def test_with_observation__expects_no_negative_losses_if_clock_goes_back() -> None:
    losses = [OfferObservation(KEY, now, available=True, held_since=now + 1000 * DAY) for now in (1.0, 2.0, 3.0)]
    history = after(*losses)
    assert history.tracks[KEY].losses.expected == 0
    assert history.life_s(KEY, 0.0) > 0


def test_startup_times__start_from_prior_and_learn() -> None:
    guess, known = StartupTimes(), StartupTimes()
    for _ in range(100):
        known = known.plus(60.0)
    assert 600 < guess.mean_s < 900
    assert 600 * exp(3 * 0.5) < guess.worst_s < 600 * exp(5 * 0.5)
    assert known.mean_s < 120
    assert guess.plus(1.0).worst_s < guess.worst_s, "one quick start is no reason to expect slow ones"
    assert known.mean_s < known.worst_s < 600


def test_startup_times__end_within_quantile() -> None:
    """Of ten thousand start-ups drawn from what was learned, the share ends in time that was asked for."""
    times, random = StartupTimes(), Random(1)
    for _ in range(2000):
        times = times.plus(600 * exp(random.gauss(0.0, 0.4)))
    later = [600 * exp(random.gauss(0.0, 0.4)) for _ in range(10_000)]
    for share in (0.5, 0.9, 0.99):
        ended = sum(seconds <= times.within_s(share) for seconds in later) / len(later)
        assert ended == pytest.approx(share, abs=0.02)
    assert times.within_s(1.0) == times.within_s(0.99999) == times.worst_s


def test_advice__weighs_as_much_as_two_losses() -> None:
    advised = with_advice(History(), [Advice(KEY, 0.0, 4.0)])
    assert advised.volatility(KEY, 1.0) == pytest.approx((4 * 1 + 2 * 4) / 6)
    assert advised.volatility(NEIGHBOUR, 1.0) == 1.0
    calm = after(*losses(KEY, 12, 10 * HOUR))
    now = 120 * HOUR + DAY
    seen, both = (h.volatility(KEY, now) for h in (calm, with_advice(calm, [Advice(KEY, now, 4.0)])))
    assert seen < both < (seen + 4) / 2, "observations outweigh it"


def test_advice__expires_and_newest_counts() -> None:
    advised = with_advice(History(), [Advice(KEY, HOUR, 4.0), Advice(KEY, 0.0, 0.5)])
    assert advised.volatility(KEY, 2 * HOUR) > 1
    assert advised.volatility(KEY, HOUR + 6 * HOUR) == 1.0


def test_with_observation__keeps_advice() -> None:
    advised = with_advice(History(), [Advice(KEY, 0.0, 4.0)])
    assert with_observation(advised, OfferObservation(FAR, 1.0, available=True)).volatility(
        KEY, 1.0
    ) == advised.volatility(KEY, 1.0)


def test_mean_uptime__is_that_of_the_next_hour() -> None:
    """A simulated hour in many lives: the mean of machines lost in it, at the age and volatility of the offer."""
    history = after(OfferObservation(FAR, 0, available=True), *losses(KEY, 30, 600))
    now = 6 * HOUR
    for key in (KEY, FAR, NEIGHBOUR):
        uptime_s = history.mean_uptime_s(key, now)
        track = history.track(key)
        age_s = track.age_s(now) if track else 2 * HOUR
        assert exp(-HOUR / uptime_s) == pytest.approx(survival(age_s, HOUR, history.volatility(key, now)))
        assert 0 < uptime_s < history.life_s(key, now)
    assert history.mean_uptime_s(KEY, now) < history.mean_uptime_s(FAR, now)
    held = with_observation(history, OfferObservation(FAR, 5 * DAY, available=True, held_since=0))
    assert held.mean_uptime_s(FAR, 5 * DAY) > 2 * history.mean_uptime_s(FAR, now)


def share(*observations: OfferObservation, now: float = 10 * HOUR, key: OfferKey = KEY) -> float:
    return after(*observations).availability(key, now)[0]


def test_availability__grows_with_time_held_and_shrinks_with_refusals() -> None:
    unknown = share()
    held = share(
        OfferObservation(KEY, 0, available=True), OfferObservation(KEY, 5 * HOUR, available=True, held_since=0)
    )
    refused = share(*(OfferObservation(KEY, n * 600, available=False) for n in range(30)))
    assert refused < unknown < held
    assert share(OfferObservation(FAR, 0, available=False), OfferObservation(FAR, HOUR, available=False)) == unknown


def test_availability__counts_a_lost_machine_as_available_until_then() -> None:
    lost = [
        OfferObservation(KEY, 0, available=True),
        OfferObservation(KEY, 5 * HOUR, available=False, held_since=0),
    ]
    kept = [lost[0], OfferObservation(KEY, 5 * HOUR, available=True, held_since=0)]
    assert share(*lost) == share(*kept)


def test_availability__is_unknown_long_before_and_after_an_observation() -> None:
    often = [OfferObservation(KEY, hour * HOUR, available=False) for hour in (0, 1)]
    seldom = [OfferObservation(KEY, hour * HOUR, available=False) for hour in (0, 9)]
    assert share(*often) == pytest.approx(share(*seldom), rel=0.02)


def test_availability__is_forgotten() -> None:
    refused = [OfferObservation(KEY, n * 600, available=False) for n in range(30)]
    values = [after(*refused).availability(KEY, days * DAY) for days in (1, 3, 30)]
    assert [value for value, _ in values] == sorted(value for value, _ in values)
    assert values[-1][0] == pytest.approx(share(), abs=0.01)
    assert values[-1][1] < values[0][1]
