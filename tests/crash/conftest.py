"""Plays a crash scenario, checks it, and cleans up."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from support.worlds.crash_clouds import LocalWorld, World
from support.worlds.crash_scenario import Scenario


@pytest.fixture
def survives(tmp_path: Path, record_property: Callable[[str, object], None]) -> Iterator[Callable[..., None]]:
    scenarios = []

    def play(plan: Sequence[str], *, world: type[World] = LocalWorld, orphan: bool = False, **how: bool) -> None:
        scenario = Scenario(tmp_path / "home", plan, world=world, orphan=orphan)
        scenarios.append(scenario)
        scenario.play(**how)
        scenario.check()
        record_property("kills_survived", len(scenario.keeper.deaths))

    yield play
    for scenario in scenarios:
        scenario.close()
