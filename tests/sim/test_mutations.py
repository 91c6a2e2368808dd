"""The simulation finds every mutation within a bounded number of seeds."""

from __future__ import annotations

import pytest

from faultworld.history import run
from faultworld.mutations import MUTATIONS, scenario_for

MAX_SEEDS = 400


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", MUTATIONS)
def test_simulation__finds_every_mutation(name: str) -> None:
    scenarios = (scenario_for(name, seed) for seed in range(MAX_SEEDS))
    with pytest.MonkeyPatch.context() as patch:
        MUTATIONS[name](patch)
        failing = next((scenario for scenario in scenarios if run(scenario).violation), None)
    assert failing is not None, f"no history of {MAX_SEEDS} seeds reveals {name}"
    assert run(failing).violation is None, "the same history violates an invariant without the mutation"
