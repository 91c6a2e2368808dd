"""Thousands of histories, none of which may violate an invariant. `make sim SEED=…` prints the trace of a seed."""

from __future__ import annotations

import json

import pytest

from faultworld.history import run
from faultworld.scenario import scenario_of
from faultworld.totals import run_seeds

# tests/conftest.py sums them up in the terminal.
HISTORIES = "histories_survived"
QUICK_COUNT, SLOW_COUNT, LONG_COUNT = 75, 500, 10_000
PER_TEST = 25


def assert_invariants(seeds: range, request: pytest.FixtureRequest) -> None:
    totals, failed = run_seeds(seeds)
    violations = {seed: str(run(scenario_of(seed)).violation) for seed in failed[:3]}
    assert not failed, f"{violations}; see `make sim SEED={failed[0]}`"
    request.node.user_properties.append((HISTORIES, json.dumps(vars(totals))))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(0, QUICK_COUNT, PER_TEST))
def test_invariants__hold(first: int, request: pytest.FixtureRequest) -> None:
    assert_invariants(range(first, first + PER_TEST), request)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(QUICK_COUNT, SLOW_COUNT, PER_TEST))
def test_invariants__hold_in_more_histories(first: int, request: pytest.FixtureRequest) -> None:
    assert_invariants(range(first, first + PER_TEST), request)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(SLOW_COUNT, SLOW_COUNT + LONG_COUNT, 4 * PER_TEST))
def test_invariants__hold_in_many_histories(first: int, request: pytest.FixtureRequest) -> None:
    assert_invariants(range(first, first + 4 * PER_TEST), request)


def test_seed__determines_the_history() -> None:
    first, second = run(scenario_of(7)), run(scenario_of(7))
    assert first.trace == second.trace
    assert first.trace != run(scenario_of(8)).trace


@pytest.mark.parametrize("seed", range(58, 64))
def test_freeze__loses_no_cancel(seed: int) -> None:
    """In seed 61 a controller freezes within a poll, and must not delay the next poll of peer messages."""
    assert run(scenario_of(seed, kinds=("freeze", "take-over"), controllers=(2, 3))).violation is None
