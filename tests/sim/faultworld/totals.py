"""What histories survived, summed up."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from faultworld.history import run
from faultworld.scenario import scenario_of

_DEATH = "killed: "


@dataclass(frozen=True)
class Totals:
    """`shared`: how many of the histories had several controllers. `met`: how often each fault met something."""

    histories: int = 0
    shared: int = 0
    cpu_s: float = 0.0
    met: Counter[str] = field(default_factory=Counter)

    def __add__(self, other: Totals) -> Totals:
        return Totals(
            self.histories + other.histories,
            self.shared + other.shared,
            self.cpu_s + other.cpu_s,
            self.met + other.met,
        )

    def __str__(self) -> str:
        deaths = Counter({name: n for name, n in self.met.items() if name.startswith(_DEATH)})
        faults = self.met - deaths
        cpu_s = self.cpu_s / max(1, self.histories)
        lines = [
            f"{self.histories} histories, {self.shared} of them with several controllers;"
            f" {faults.total()} faults of {len(faults)} kinds, {deaths.total()} deaths of a controller;"
            f" {cpu_s:.2f} s of CPU each"
        ]
        lines += [f"  {n:7d}  {name}" for name, n in sorted(self.met.items(), key=lambda item: -item[1])]
        return "\n".join(lines)


def survived(seeds: Iterable[int]) -> tuple[Totals, list[int]]:
    """Run the histories of these seeds. Returns what those met that broke no invariant, and the seeds of the others."""
    totals, failed = Totals(), []
    for seed in seeds:
        scenario, began = scenario_of(seed), time.process_time()
        history = run(scenario)
        if history.violation is not None:
            failed.append(seed)
        else:
            totals += Totals(1, int(scenario.controllers > 1), time.process_time() - began, history.met)
    return totals, failed
