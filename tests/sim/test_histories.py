"""Thousands of histories, none of which may break an invariant. A failing seed is told by `make sim SEED=…`."""

from __future__ import annotations

import json

import pytest

from faultworld.history import run
from faultworld.scenario import scenario_of
from faultworld.totals import survived

# Summed up in the terminal by tests/conftest.py, whichever worker ran them.
HISTORIES = "histories_survived"
QUICK, SLOW = 500, 10_000
PER_TEST = 25


def survive(seeds: range, record: pytest.FixtureRequest) -> None:
    totals, failed = survived(seeds)
    said = {seed: str(run(scenario_of(seed)).violation) for seed in failed[:3]}
    assert not failed, f"{said}; see `make sim SEED={failed[0]}`"
    record.node.user_properties.append((HISTORIES, json.dumps(vars(totals))))


@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(0, QUICK, PER_TEST))
def test_every_invariant_holds(first: int, request: pytest.FixtureRequest) -> None:
    survive(range(first, first + PER_TEST), request)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(QUICK, QUICK + SLOW, 4 * PER_TEST))
def test_every_invariant_holds_for_long(first: int, request: pytest.FixtureRequest) -> None:
    survive(range(first, first + 4 * PER_TEST), request)


def test_a_seed_is_one_history() -> None:
    first, again = run(scenario_of(7)), run(scenario_of(7))
    assert first.story == again.story
    assert first.story != run(scenario_of(8)).story


@pytest.mark.parametrize("seed", range(58, 64))
def test_controllers_that_stand_still_lose_no_wish(seed: int) -> None:
    """In the 61st one stood still in the middle of a look, and then did not look for what users wanted for a minute."""
    assert run(scenario_of(seed, kinds=("freeze", "take-over"), controllers=(2, 3))).violation is None
