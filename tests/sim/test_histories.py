"""Thousands of histories, none of which may break an invariant. A failing seed is told by `make sim SEED=…`."""

from __future__ import annotations

from collections import Counter

import pytest

from faultworld.history import run
from faultworld.scenario import scenario_of

QUICK, SLOW = 500, 10_000
PER_TEST = 50


def survive(seeds: range, record: pytest.FixtureRequest) -> None:
    met: Counter[str] = Counter()
    for seed in seeds:
        history = run(scenario_of(seed))
        assert history.violation is None, f"seed {seed}: {history.violation}; see `make sim SEED={seed}`"
        met += history.met
    record.node.user_properties.append(("sim:histories", len(seeds)))
    record.node.user_properties.extend((f"sim:{name}", count) for name, count in met.items())


@pytest.mark.parametrize("first", range(0, QUICK, PER_TEST))
def test_every_invariant_holds(first: int, request: pytest.FixtureRequest) -> None:
    survive(range(first, first + PER_TEST), request)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(QUICK, QUICK + SLOW, 10 * PER_TEST))
def test_every_invariant_holds_for_long(first: int, request: pytest.FixtureRequest) -> None:
    survive(range(first, first + 10 * PER_TEST), request)


def test_a_seed_is_one_history() -> None:
    first, again = run(scenario_of(7)), run(scenario_of(7))
    assert first.story == again.story
    assert first.story != run(scenario_of(8)).story
