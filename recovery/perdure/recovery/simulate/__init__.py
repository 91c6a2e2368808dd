"""The policy simulator: the daemon's own `step` and policies against recorded spot availability, on a virtual clock.

Read in this order: `traces` (what was recorded), `scenario` (what is asked), `cloud` (what would have happened to a
machine), `world` (the daemon in it), `baselines` and `optimum` (what to compare with), `simulation` (many windows),
`statistics`, `report`, `plot`. Only `files` reads anything from disk.
"""

from __future__ import annotations

from perdure.recovery.simulate.scenario import Run, Scenario
from perdure.recovery.simulate.simulation import Simulation, simulate
from perdure.recovery.simulate.traces import BadTrace, ZoneTrace, parse

__all__ = ["BadTrace", "Run", "Scenario", "Simulation", "ZoneTrace", "parse", "simulate"]
