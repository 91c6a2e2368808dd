"""Totals over many histories."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from faultworld.history import run
from faultworld.scenario import Scenario, scenario_of
from faultworld.world import DEATH


@dataclass(frozen=True)
class Totals:
    """Totals of histories that violated no invariant."""

    histories: int = 0
    clustered: int = 0  # how many of them had several controllers
    cpu_s: float = 0.0
    #: How often each kind of fault had an effect, and what followed from faults.
    fault_counts: Counter[str] = field(default_factory=Counter)

    def __add__(self, other: Totals) -> Totals:
        return Totals(
            self.histories + other.histories,
            self.clustered + other.clustered,
            self.cpu_s + other.cpu_s,
            self.fault_counts + other.fault_counts,
        )

    def __str__(self) -> str:
        deaths = Counter({name: n for name, n in self.fault_counts.items() if name.startswith(DEATH)})
        faults = self.fault_counts - deaths
        cpu_s = self.cpu_s / max(1, self.histories)
        lines = [
            f"{self.histories} histories, {self.clustered} of them with several controllers;"
            f" {faults.total()} faults of {len(faults)} kinds, {deaths.total()} deaths of a controller;"
            f" {cpu_s:.2f} s of CPU each"
        ]
        lines += [f"  {n:7d}  {name}" for name, n in sorted(self.fault_counts.items(), key=lambda item: -item[1])]
        return "\n".join(lines)


def run_seeds(seeds: Iterable[int], make: Callable[[int], Scenario] = scenario_of) -> tuple[Totals, list[int]]:
    """Run the histories of these seeds. Returns the totals of those without violation, and the seeds of the others."""
    totals, failed = Totals(), []
    for seed in seeds:
        scenario, started_at = make(seed), time.process_time()
        history = run(scenario)
        if history.violation is not None:
            failed.append(seed)
        else:
            totals += Totals(1, int(scenario.controllers > 1), time.process_time() - started_at, history.fault_counts)
    return totals, failed
