"""When a save pays."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.checkpoint.pace import PRIOR_LIFE_S, Pace, best_interval_s, mean_life_s


def waste(interval_s: float, cost_s: float, life_s: float) -> float:
    """Share of time lost to saving and to work done again, to first order."""
    return cost_s / interval_s + interval_s / (2 * life_s)


@given(st.floats(0.01, 30), st.floats(3600, 1e6), st.floats(0.2, 5))
def test_no_other_interval_wastes_less(cost_s: float, life_s: float, factor: float) -> None:
    best = math.sqrt(2 * cost_s * life_s)
    if best_interval_s(cost_s, life_s) == best:
        assert waste(best, cost_s, life_s) <= waste(best * factor, cost_s, life_s) * (1 + 1e-9)


def test_bounds_of_the_interval() -> None:
    assert best_interval_s(10, 3600) == pytest.approx(math.sqrt(2 * 10 * 3600))
    assert best_interval_s(1000, 3600) == 10_000  # a tenth of the time at the most
    assert best_interval_s(0.1, 3600, busy_s=300) == 300  # one save in flight


def test_rate_of_interruptions_is_that_of_this_task(monkeypatch: pytest.MonkeyPatch) -> None:
    assert mean_life_s(1e9) == PRIOR_LIFE_S
    monkeypatch.setenv("SKYPILOT_TASK_ID", "sky-managed-2026-01-01-00-00-00-000000_job_1-0")
    monkeypatch.setenv("PERDURE_GENERATION", "5")
    submitted = 1767225600.0
    assert mean_life_s(submitted + 36 * 3600) == (36 * 3600 + PRIOR_LIFE_S) / 5
    monkeypatch.setenv("SKYPILOT_TASK_ID", "something else")
    assert mean_life_s(submitted) == PRIOR_LIFE_S


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_learns_what_a_save_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SKYPILOT_TASK_ID", "PERDURE_GENERATION"):
        monkeypatch.delenv(name, raising=False)
    clock = Clock()
    pace = Pace(clock=clock, now=lambda: 0.0)
    assert not pace.is_due(1)
    clock.now = 60
    assert pace.is_due(2)
    pace.saved(2.0)
    assert not pace.is_due(3)
    assert pace.interval_s() == pytest.approx(math.sqrt(2 * 2 * PRIOR_LIFE_S))
    pace.worked(1000.0)
    assert pace.interval_s() == 1000
    clock.now += 999
    assert not pace.is_due(4)
    clock.now += 1
    assert pace.is_due(5)


def test_fixed_intervals() -> None:
    clock = Clock()
    assert [step for step in range(7) if Pace(every_steps=3, clock=clock).is_due(step)] == [0, 3, 6]
    pace = Pace(every_s=10, clock=clock)
    clock.now = 9
    assert not pace.is_due(1)
    clock.now = 10
    assert pace.is_due(1)


def test_the_last_step_is_always_due() -> None:
    assert [step for step in range(1, 8) if Pace(every_steps=3, total_steps=7, clock=Clock()).is_due(step)] == [3, 6, 7]
    assert Pace(total_steps=7, clock=Clock()).is_due(7)
    with pytest.raises(ValueError, match="0 steps"):
        Pace(total_steps=0)
