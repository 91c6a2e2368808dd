"""What each part of DEADLINE is worth: its cost over the optimum's without the part, on both halves of the traces.

The law of lives was fitted to the first half. The other constants were chosen while looking at windows of both.
"""

from __future__ import annotations

import os
import time
from dataclasses import replace

from perdure.recovery.policies.parts import PARTS
from perdure.recovery.simulate import Scenario, Simulation, ZoneTrace, simulate

WHOLE = "DEADLINE"
HALVES = {"first half": (0.0, 0.5), "second half": (0.5, 1.0)}

# Not the policy's doing, but what its controller knew before.
KNOWLEDGE = {"no start-up seen before": {"seen_starts": 0}, "start-up times known exactly": {"seen_starts": 1000}}

Sums = tuple[float, float, int]


def main(zones: tuple[ZoneTrace, ...], asked: dict[str, int], windows: int) -> list[str]:
    """Prints both tables. `asked`: work, deadline and start-up. Returns who was late."""
    apart = tuple(Scenario((zone,), **asked) for zone in zones)
    together = (Scenario(zones, **asked),)
    return [*_table("one zone", apart, max(1, windows // 2)), *_table("all zones", together, windows)]


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
    cut = tuple(replace(s, zones=tuple(zone.part(begin, end) for zone in s.zones)) for s in scenarios)
    names = [WHOLE, *(f"{WHOLE} without {part}" for part in PARTS)]
    found = simulate(cut, names, windows=windows, processes=os.cpu_count() or 1)
    rows = {"nothing (all of it)": _sums(found, WHOLE)}
    rows |= {text: _sums(found, f"{WHOLE} without {part}") for part, text in PARTS.items()}
    for text, knowledge in KNOWLEDGE.items():
        known = tuple(replace(s, **knowledge) for s in cut)
        again = simulate(known, [WHOLE], windows=windows, processes=os.cpu_count() or 1, with_optimum=False)
        rows[text] = _sums(replace(again, least=found.least), WHOLE)
    return rows


def _sums(found: Simulation, policy: str) -> Sums:
    runs = found.runs[policy]
    late = sum(run.is_late(found.scenario(i).deadline_s) for i, run in enumerate(runs))
    return sum(run.cost for run in runs), sum(found.least[policy]), late
