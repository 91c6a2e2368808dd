"""What each part of DEADLINE is worth: its cost without the part over the optimum's, on both halves of the traces.

The law of lifetimes was fitted to the first half. The other constants were chosen on windows of both.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace

from perdure.recovery.policies.ablation import PARTS
from perdure.recovery.simulate import Scenario, Simulation, ZoneTrace, simulate

WHOLE = "DEADLINE"
HALVES = {"first half": (0.0, 0.5), "second half": (0.5, 1.0)}

# Not parts of the policy, but what its controller has observed before.
KNOWLEDGE = {
    "no start-up observed before": {"prior_starts": 0},
    "start-up times known exactly": {"prior_starts": 1000},
}

Sums = tuple[float, float, int]


def main(zones: tuple[ZoneTrace, ...], durations: dict[str, int], windows: int) -> list[str]:
    """Print both tables. `durations`: work, deadline and start-up. Returns the policies that were late."""
    separate = tuple(Scenario((zone,), **durations) for zone in zones)
    joint = (Scenario(zones, **durations),)
    return [*_table("one zone", separate, max(1, windows // 2)), *_table("all zones", joint, windows)]


def _table(name: str, scenarios: tuple[Scenario, ...], windows: int) -> list[str]:
    began = time.perf_counter()
    columns = [_half(scenarios, begin, end, windows) for begin, end in HALVES.values()]
    took_s = time.perf_counter() - began
    print(f"\n{name}, {WHOLE} without each of its parts ({2 * windows * len(scenarios)} windows, {took_s:.0f} s)")
    print(f"  {'without':<60}" + "".join(f"{half:>13}" for half in [*HALVES, "both"]))
    late = []
    for row in columns[0]:
        halves = [column[row] for column in columns]
        both = [sum(values) for values in zip(*halves, strict=True)]
        print(f"  {row:<60}" + "".join(f"{cost / least:>13.3f}" for cost, least, _ in [*halves, both]))
        late += [f"{name}, {WHOLE}, {row}: late {both[2]} times"] if both[2] else []
    return late


def _half(scenarios: tuple[Scenario, ...], begin: float, end: float, windows: int) -> dict[str, Sums]:
    sliced = tuple(replace(s, zones=tuple(zone.slice(begin, end) for zone in s.zones)) for s in scenarios)
    names = [WHOLE, *(f"{WHOLE} without {part}" for part in PARTS)]
    simulation = simulate(sliced, names, windows=windows, processes=os.cpu_count() or 1)
    rows = {"nothing (the whole policy)": _sums(simulation, WHOLE)}
    rows |= {text: _sums(simulation, f"{WHOLE} without {part}") for part, text in PARTS.items()}
    for text, knowledge in KNOWLEDGE.items():
        informed = tuple(replace(s, **knowledge) for s in sliced)
        rerun = simulate(informed, [WHOLE], windows=windows, processes=os.cpu_count() or 1, with_optimum=False)
        rows[text] = _sums(replace(rerun, optimum_costs=simulation.optimum_costs), WHOLE)
    return rows


def _sums(simulation: Simulation, policy: str) -> Sums:
    runs = simulation.runs[policy]
    late = sum(run.is_late(simulation.scenario(i).deadline_s) for i, run in enumerate(runs))
    return sum(run.cost for run in runs), sum(simulation.optimum_costs[policy]), late
