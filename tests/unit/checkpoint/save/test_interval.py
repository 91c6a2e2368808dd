"""The interval between saves."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.checkpoint.save.interval import PRIOR_UPTIME_S, UPTIME, SaveInterval, mean_uptime_s, optimal_interval_s


def waste(interval_s: float, cost_s: float, uptime_s: float) -> float:
    """Share of time lost to saving and to repeated work, to first order."""
    return cost_s / interval_s + interval_s / (2 * uptime_s)


@given(st.floats(0.01, 30), st.floats(3600, 1e6), st.floats(0.2, 5))
def test_optimal_interval_s__no_other_interval_wastes_less(cost_s: float, uptime_s: float, factor: float) -> None:
    best = math.sqrt(2 * cost_s * uptime_s)
    if optimal_interval_s(cost_s, uptime_s) == best:
        assert waste(best, cost_s, uptime_s) <= waste(best * factor, cost_s, uptime_s) * (1 + 1e-9)


def test_optimal_interval_s__bounds() -> None:
    assert optimal_interval_s(10, 3600) == pytest.approx(math.sqrt(2 * 10 * 3600))
    assert optimal_interval_s(0.1, 3600, busy_s=300) == 300  # one save in flight


@pytest.mark.parametrize(("cost_s", "uptime_s"), [(60, 600), (120, 1800), (300, 600), (1, 1e5)])
def test_optimal_interval_s__is_near_the_exact_optimum_for_costly_saves(cost_s: float, uptime_s: float) -> None:
    def exact_waste(interval_s: float) -> float:
        """Time per work, less 1, if losses come at random: a span counts once it has ended without one."""
        return uptime_s * math.expm1((interval_s + cost_s) / uptime_s) / interval_s - 1

    best = min(exact_waste(uptime_s * share / 1000) for share in range(1, 3000))
    assert exact_waste(optimal_interval_s(cost_s, uptime_s)) <= 1.2 * best


def test_save_interval__slow_first_save_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(UPTIME, raising=False)
    interval = SaveInterval(clock=Clock())
    for cost_s in (30.0, 0.1, 0.1):
        interval.record_save(cost_s)
        interval.record_busy(10 * cost_s)
    assert interval.interval_s() == pytest.approx(math.sqrt(2 * 0.1 * PRIOR_UPTIME_S))


@pytest.mark.parametrize("word", [None, "", "soon", "0", "-1", "nan", "inf"])
def test_mean_uptime_s__without_a_controllers_word(word: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(UPTIME, raising=False)
    if word is not None:
        monkeypatch.setenv(UPTIME, word)
    assert mean_uptime_s(0.0) == PRIOR_UPTIME_S
    assert mean_uptime_s(3600.0) == PRIOR_UPTIME_S + 3600


def test_save_interval__follows_the_controllers_word_and_no_time_in_a_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SKYPILOT_TASK_ID", "sky-managed-2020-01-01-00-00-00-000000_job_1-0")  # waited for years
    monkeypatch.setenv("PERDURE_GENERATION", "9")
    monkeypatch.delenv(UPTIME, raising=False)
    interval = SaveInterval(clock=Clock())
    interval.record_save(2.0)
    assert interval.interval_s() == pytest.approx(math.sqrt(2 * 2 * PRIOR_UPTIME_S))
    monkeypatch.setenv(UPTIME, "1800")
    assert interval.interval_s() == pytest.approx(math.sqrt(2 * 2 * 1800))


@pytest.mark.parametrize(("options", "waits"), [({}, True), ({"every_steps": 5}, False), ({"every_s": 5}, False)])
def test_save_interval__only_a_computed_one_waits_for_uploads(options: dict[str, int], waits: bool) -> None:
    interval = SaveInterval(clock=Clock(), **options)  # type: ignore[arg-type]
    interval.record_save(2.0)
    assert interval.waits_for_uploads is waits


def test_save_interval__waits_for_no_upload_that_does_not_end() -> None:
    clock = Clock()
    interval = SaveInterval(clock=clock)
    interval.record_save(0.001)
    clock.now = 1700.0
    assert interval.waits_for_uploads
    interval.record_upload()
    interval.record_save(0.001)
    clock.now += 3399
    assert interval.waits_for_uploads  # the last one took nearly as long
    clock.now += 2
    assert not interval.waits_for_uploads


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_save_interval__learns_the_cost_of_a_save(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(UPTIME, raising=False)
    clock = Clock()
    interval = SaveInterval(clock=clock)
    assert not interval.is_due(1)
    clock.now = 60
    assert interval.is_due(2)
    interval.record_save(2.0)
    assert not interval.is_due(3)
    assert interval.interval_s() == pytest.approx(math.sqrt(2 * 2 * (PRIOR_UPTIME_S + 60)))
    interval.record_busy(1000.0)
    assert interval.interval_s() == 1000
    clock.now += 999
    assert not interval.is_due(4)
    clock.now += 1
    assert interval.is_due(5)


def test_save_interval__fixed() -> None:
    clock = Clock()
    assert [step for step in range(7) if SaveInterval(every_steps=3, clock=clock).is_due(step)] == [0, 3, 6]
    interval = SaveInterval(every_s=10, clock=clock)
    clock.now = 9
    assert not interval.is_due(1)
    clock.now = 10
    assert interval.is_due(1)


def test_save_interval__last_step_is_always_due() -> None:
    interval = SaveInterval(every_steps=3, total_steps=7, clock=Clock())
    assert [step for step in range(1, 8) if interval.is_due(step)] == [3, 6, 7]
    assert SaveInterval(total_steps=7, clock=Clock()).is_due(7)
    with pytest.raises(ValueError, match="total_steps must be at least 1, not 0"):
        SaveInterval(total_steps=0)
