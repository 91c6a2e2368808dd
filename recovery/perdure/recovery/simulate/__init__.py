"""The policy simulator: the controller's own `step` and policies, replayed on recorded spot markets with virtual time.

Reading order:

1. `traces`, `files`: recorded availability; only `files` reads from disk. `synthetic`: random availability.
2. `scenario`: what to simulate, and the result of one run.
3. `cloud`, `workload`, `world`: machines, the training job, and the controller's decision loop between them.
4. `baselines`, `optimum`: what to compare with.
5. `simulation`: many windows. `statistics`, `results`: what they show.
6. `forecast`: what a task that is about to be launched will probably cost, on random markets.
"""

from __future__ import annotations

from perdure.recovery.simulate.scenario import Run, Scenario
from perdure.recovery.simulate.simulation import Simulation, simulate
from perdure.recovery.simulate.traces import BadTrace, ZoneTrace, parse

__all__ = ["BadTrace", "Run", "Scenario", "Simulation", "ZoneTrace", "parse", "simulate"]
