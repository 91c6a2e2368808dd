"""Processes exchange by time, at the same calls, whatever their clocks say."""

from __future__ import annotations

from itertools import pairwise

import pytest

from perdure.checkpoint.ranks.exchange_pace import ExchangePace


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def exchanges(step_s: list[list[float]]) -> list[tuple[int, float]]:
    """(call, time) of every exchange. `step_s`: per call the seconds that each process took before it."""
    clocks = [Clock() for _ in step_s[0]]
    ranks = [ExchangePace(clock) for clock in clocks]
    found = []
    for number, durations in enumerate(step_s):
        for clock, duration in zip(clocks, durations, strict=True):
            clock.now += duration
        due = {one.is_due() for one in ranks}
        assert len(due) == 1, f"the processes disagree at call {number}"
        if due == {True}:
            call_s = [one.call_s() for one in ranks]
            for one in ranks:
                one.conclude(call_s)
            found.append((number, max(clock.now for clock in clocks)))
    return found


@pytest.mark.parametrize("step_s", [0.001, 0.03, 0.4, 5.0, 50.0])
def test_exchange__takes_place_within_a_second_or_at_the_next_step(step_s: float) -> None:
    times = [at for _, at in exchanges([[step_s, step_s * 0.9]] * 5000)]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert max(gaps) <= max(1.0, step_s * 1.01)


def test_exchange__costs_fast_steps_little() -> None:
    assert len(exchanges([[0.001, 0.001]] * 10_000)) <= 110


def test_exchange__steps_that_become_slower_are_noticed() -> None:
    found = exchanges([[0.01, 0.01]] * 500 + [[1.0, 0.2]] * 200)
    assert [number for number, _ in found[-3:]] == [697, 698, 699]
