"""The simulation finds what it is there to find: every known mistake, within a bounded number of seeds."""

from __future__ import annotations

import pytest

from faultworld.history import run
from faultworld.mistakes import MISTAKES, SHOWN_BY
from faultworld.scenario import FAULTS, scenario_of

WITHIN = 400


@pytest.mark.parametrize("name", MISTAKES)
def test_a_known_mistake_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MISTAKES[name](monkeypatch)
    histories = (run(scenario_of(seed, kinds=SHOWN_BY.get(name, tuple(FAULTS)))) for seed in range(WITHIN))
    assert any(history.violation for history in histories), f"{name} survives {WITHIN} seeds"
