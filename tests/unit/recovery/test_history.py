"""What is learned of offers: from whatever happens to any job, with sensible answers before anything did."""

from __future__ import annotations

from math import exp

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.recovery.history import Advice, History, Sighting, StartUps, advised, learn
from perdure.recovery.market import Market, OfferKey
from perdure.recovery.survival import cumulative_hazard, remaining_life_s, survival

HOUR, DAY = 3600.0, 86400.0
KEY = OfferKey("aws", "east", "e1", "v", Market.SPOT)
NEIGHBOUR = OfferKey("aws", "east", "e2", "v", Market.SPOT)
FAR = OfferKey("aws", "west", "w1", "v", Market.SPOT)


def after(*sightings: Sighting) -> History:
    history = History()
    for sighting in sightings:
        history = learn(history, sighting)
    return history


def losses(key: OfferKey, count: int, every_s: float) -> list[Sighting]:
    """`count` machines in a row, each taken after `every_s`."""
    return [
        s
        for i in range(count)
        for s in (
            Sighting(key, i * every_s + 1, available=True),
            Sighting(key, (i + 1) * every_s, available=False, held_since=i * every_s + 1),
        )
    ]


def test_the_mean_residual_life_is_the_integral_of_survival() -> None:
    for age_s in (0.0, HOUR, 20 * HOUR):
        step_s, total = 60.0, 0.0
        x = step_s / 2
        while survival(age_s, x) > 1e-4:
            total += survival(age_s, x) * step_s
            x += step_s
        assert remaining_life_s(age_s) == pytest.approx(total, rel=0.03)


@given(st.floats(0, 30 * DAY), st.floats(1, 30 * DAY), st.floats(0.2, 5))
def test_what_has_lived_long_lives_longer_and_what_is_volatile_shorter(
    age_s: float, more_s: float, rate: float
) -> None:
    assert remaining_life_s(age_s + more_s) >= remaining_life_s(age_s)
    assert remaining_life_s(age_s, rate * 1.1) < remaining_life_s(age_s, rate)
    assert survival(age_s, more_s, rate) == pytest.approx(
        exp(-rate * (cumulative_hazard(age_s + more_s) - cumulative_hazard(age_s)))
    )


def test_a_zone_that_loses_machines_is_thought_worse_of_and_its_neighbours_somewhat() -> None:
    now = 5 * HOUR
    history = after(Sighting(FAR, 0, available=True), *losses(KEY, 30, 600))
    assert history.volatility(KEY, now + DAY) > history.volatility(NEIGHBOUR, now + DAY) > 1
    assert history.volatility(FAR, now + DAY) == 1
    assert history.life_s(FAR, now) > history.life_s(KEY, now)


def test_a_machine_held_for_long_speaks_for_its_zone() -> None:
    history = after(Sighting(KEY, 0, available=True), Sighting(KEY, 5 * DAY, available=True, held_since=0))
    assert history.volatility(KEY, 5 * DAY) < 1
    assert history.life_s(KEY, 5 * DAY) > 2 * DAY


def test_old_evidence_fades() -> None:
    history = after(*losses(KEY, 30, 600))
    fresh = history.volatility(KEY, 6 * HOUR)
    for _ in range(2):
        history = learn(history, Sighting(KEY, 30 * DAY, available=True))
    assert history.volatility(KEY, 30 * DAY) == pytest.approx(1, abs=(fresh - 1) / 4)


def test_a_region_that_just_took_a_machine_is_avoided_for_a_while() -> None:
    history = after(Sighting(NEIGHBOUR, 0, available=True), Sighting(KEY, 1, available=True), *losses(KEY, 1, 7 * HOUR))
    assert history.volatility(NEIGHBOUR, 7 * HOUR + 60) > 1.5 * history.volatility(NEIGHBOUR, 9 * HOUR)


def test_what_came_back_is_young() -> None:
    history = after(
        Sighting(KEY, 0, available=True),
        Sighting(KEY, 100 * HOUR, available=False),
        Sighting(KEY, 101 * HOUR, available=True),
    )
    track = history.track(KEY)
    assert track is not None
    assert 0 < track.age_s(101 * HOUR) <= HOUR


def test_word_from_the_past_changes_nothing() -> None:
    history = after(Sighting(KEY, 100, available=True))
    assert learn(history, Sighting(KEY, 50, available=False)) == history


def test_start_ups_are_guessed_first_and_known_later() -> None:
    guess, known = StartUps(), StartUps()
    for _ in range(100):
        known = known.plus(60.0)
    assert 600 < guess.usual_s < 900
    assert 600 * exp(3 * 0.5) < guess.worst_s < 600 * exp(5 * 0.5)
    assert known.usual_s < 120
    assert guess.plus(1.0).worst_s < guess.worst_s, "one that was quick is no reason to fear slow ones"
    assert known.usual_s < known.worst_s < 600


def test_a_clouds_word_weighs_as_much_as_two_losses_and_no_more() -> None:
    told = advised(History(), [Advice(KEY, 0.0, 4.0)])
    assert told.volatility(KEY, 1.0) == pytest.approx((4 * 1 + 2 * 4) / 6)
    assert told.volatility(NEIGHBOUR, 1.0) == 1.0
    calm = after(*losses(KEY, 12, 10 * HOUR))
    now = 120 * HOUR + DAY
    seen, both = (h.volatility(KEY, now) for h in (calm, advised(calm, [Advice(KEY, now, 4.0)])))
    assert seen < both < (seen + 4) / 2, "what was seen outweighs it"


def test_a_clouds_word_is_forgotten_and_the_newest_counts() -> None:
    told = advised(History(), [Advice(KEY, HOUR, 4.0), Advice(KEY, 0.0, 0.5)])
    assert told.volatility(KEY, 2 * HOUR) > 1
    assert told.volatility(KEY, HOUR + 6 * HOUR) == 1.0


def test_what_is_learned_leaves_it_standing() -> None:
    told = advised(History(), [Advice(KEY, 0.0, 4.0)])
    assert learn(told, Sighting(FAR, 1.0, available=True)).volatility(KEY, 1.0) == told.volatility(KEY, 1.0)
