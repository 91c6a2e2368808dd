"""DEADLINE is never late: gangs, checkpoints, wrong work, transfer costs and prices that move, drawn at random."""

from __future__ import annotations

from functools import cache

import pytest
from benchmarks.random_settings import SETTINGS, TRACES, run_setting

from perdure.recovery.simulate import ZoneTrace
from perdure.recovery.simulate.files import load

PARTS = 8


@cache
def zones() -> tuple[ZoneTrace, ...]:
    return load([TRACES], unavailable_is=1)


def late(first: int, count: int, seed: int) -> list[str]:
    """The settings that were late, with their properties."""
    results = [(number, *run_setting(zones(), number, seed)) for number in range(first, first + count)]
    return [f"setting {n} of seed {seed}, by {by}: {', '.join(properties)}" for n, properties, by in results if by]


def test_deadline__is_met_in_random_settings() -> None:
    assert late(0, 32, seed=2) == []


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", range(PARTS))
def test_deadline__is_met_in_two_thousand_random_settings(part: int) -> None:
    size = SETTINGS // PARTS
    assert late(part * size, size, seed=3) == []
