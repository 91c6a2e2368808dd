"""Back-off: grows to its cap, differs between jobs, repeats itself for one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.recovery.backoff import delay


def test_it_doubles_up_to_the_cap() -> None:
    mean = [sum(delay(n, 5, 300, f"job-{i}") for i in range(500)) / 500 for n in range(1, 12)]
    ceilings = [5, 10, 20, 40, 80, 160, 300, 300, 300, 300, 300]
    assert mean == pytest.approx([0.75 * c for c in ceilings], rel=0.05)


def test_jobs_refused_together_come_back_apart() -> None:
    assert len({round(delay(7, 5, 300, f"job-{i}")) for i in range(100)}) > 40


@given(st.integers(1, 10**9), st.floats(0.1, 100), st.floats(0.1, 1000), st.text())
def test_it_stays_within_bounds_and_repeats(refused: int, first_s: float, cap_s: float, seed: str) -> None:
    waited = delay(refused, first_s, cap_s, seed)
    assert min(first_s, cap_s) / 2 <= waited <= cap_s
    assert waited == delay(refused, first_s, cap_s, seed)


def test_nothing_refused_nothing_waited() -> None:
    assert delay(0, 5, 300, "job-1") == 0
