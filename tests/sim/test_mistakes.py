"""The simulation finds what it is there to find: every known mistake, within a bounded number of seeds."""

from __future__ import annotations

import pytest

from faultworld.history import run
from faultworld.mistakes import MISTAKES, shows

WITHIN = 400


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", MISTAKES)
def test_a_known_mistake_is_found(name: str) -> None:
    histories = (shows(name, seed) for seed in range(WITHIN))
    with pytest.MonkeyPatch.context() as patch:
        MISTAKES[name](patch)
        found = next((scenario for scenario in histories if run(scenario).violation), None)
    assert found is not None, f"{name} survives {WITHIN} seeds"
    assert run(found).violation is None, "the same history breaks a rule without the mistake"
