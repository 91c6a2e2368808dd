"""Backoff: grows to its maximum, differs between jobs, is the same for one job."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.recovery.rules.backoff import delay


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
