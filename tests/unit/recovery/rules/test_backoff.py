"""Backoff: grows to its maximum, differs between jobs, is the same for one job."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.recovery.rules.backoff import delay, recovery_allowed_at, recovery_debt


def test_delay__doubles_up_to_maximum() -> None:
    mean = [sum(delay(n, 5, 300, f"job-{i}") for i in range(500)) / 500 for n in range(1, 12)]
    ceilings = [5, 10, 20, 40, 80, 160, 300, 300, 300, 300, 300]
    assert mean == pytest.approx([0.75 * c for c in ceilings], rel=0.05)


def test_delay__differs_between_jobs() -> None:
    assert len({round(delay(7, 5, 300, f"job-{i}")) for i in range(100)}) > 40


@given(st.integers(1, 10**9), st.floats(0.1, 100), st.floats(0.1, 1000), st.text())
def test_delay__is_bounded_and_deterministic(refusals: int, initial_s: float, max_s: float, seed: str) -> None:
    delay_s = delay(refusals, initial_s, max_s, seed)
    assert min(initial_s, max_s) / 2 <= delay_s <= max_s
    assert delay_s == delay(refusals, initial_s, max_s, seed)


def test_delay__is_zero_without_refusals() -> None:
    assert delay(0, 5, 300, "job-1") == 0


@given(per_hour=st.integers(2, 200), eagerness=st.lists(st.floats(0.0, 4000.0), min_size=1, max_size=300))
def test_recoveries__never_exceed_the_limit_in_any_hour(per_hour: int, eagerness: list[float]) -> None:
    now, debt_until, begun = 1.8e9, 0.0, list[float]()
    for idle_s in eagerness:
        debt_until = recovery_debt(debt_until, now, per_hour)
        now = max(now, recovery_allowed_at(debt_until, per_hour)) + idle_s
        begun.append(now)
    for first, later in zip(begun, begun[per_hour:], strict=False):
        assert later - first > 3599.99


@pytest.mark.parametrize("per_hour", [2, 3, 20, 51])
def test_recoveries__begin_at_once_until_half_of_the_limit_is_used(per_hour: int) -> None:
    now, debt_until = 1.8e9, 0.0
    for _ in range(per_hour // 2):
        debt_until = recovery_debt(debt_until, now, per_hour)
        assert recovery_allowed_at(debt_until, per_hour) <= now
    for _ in range(2):
        debt_until = recovery_debt(debt_until, now, per_hour)
    assert recovery_allowed_at(debt_until, per_hour) > now
