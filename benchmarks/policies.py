"""`make bench`: what recovery policies cost on recorded spot markets, against published ones and the exact optimum.

    python -m benchmarks.policies [--windows N] [--traces PATH] [--split]

Without --traces, those that come with the tests. `--split` tells the halves of the traces, and every other zone, apart:
what was tuned on one has to hold on the other.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from holdfast.recovery.policies.registry import STRATEGIES
from holdfast.recovery.simulate import Scenario, Simulation, ZoneTrace, simulate
from holdfast.recovery.simulate.files import load
from holdfast.recovery.simulate.statistics import Summary, summaries

TRACES = Path(__file__).parents[1] / "tests/data/traces/aws-v100"
HOUR = 3600
WINDOWS = 10

# The published setting: 48 hours of work in 60, 12 minutes from launch to work.
PUBLISHED = {"work_s": 48 * HOUR, "deadline_s": 60 * HOUR, "cold_start_s": 720}


@dataclass(frozen=True)
class Bench:
    """One table. `windows`: of each scenario. `at_most`: what a policy's ratio to the optimum must not exceed."""

    name: str
    scenarios: tuple[Scenario, ...]
    policies: tuple[str, ...]
    windows: int
    at_most: dict[str, float]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.policies", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--windows", type=int, default=WINDOWS, help="of each zone; of all zones together, twice as many"
    )
    parser.add_argument("--traces", type=Path, default=Path(os.environ.get("HOLDFAST_TRACES", TRACES)))
    parser.add_argument("--split", action="store_true", help="halves of the traces and every other zone by themselves")
    given = parser.parse_args(arguments)
    zones = load([given.traces], unavailable_is=1)
    missed = []
    for part, members in _parts(zones) if given.split else [("", zones)]:
        for bench in _benches(members, given.windows):
            missed += _run(replace(bench, name=f"{bench.name}{part}"))
    if missed:
        print("\nmissed:\n  " + "\n  ".join(missed), file=sys.stderr)
    return 1 if missed else 0


def _parts(zones: tuple[ZoneTrace, ...]) -> list[tuple[str, tuple[ZoneTrace, ...]]]:
    halves = [(0.0, 0.5, "first half"), (0.5, 1.0, "second half")]
    found = [(f", {name}", tuple(z.part(begin, end) for z in zones)) for begin, end, name in halves]
    return [*found, (", zones 1, 3, 5 …", zones[::2]), (", zones 2, 4, 6 …", zones[1::2])]


def _benches(zones: tuple[ZoneTrace, ...], windows: int) -> list[Bench]:
    known = set(STRATEGIES)
    apart = tuple(Scenario((zone,), **PUBLISHED) for zone in zones)
    together = Scenario(zones, **PUBLISHED)
    rough = {"cold_start_sigma": 0.5, "checkpoint_every_s": 1800.0}
    spot = Scenario(zones, work_s=48 * HOUR, cold_start_s=720, use_on_demand=False)
    deadline = tuple({"DEADLINE"} & known)
    anywhere = ("CHEAPEST", "EAGER_NEXT_REGION", *sorted({"VALUE"} & known))
    return [
        Bench("one zone, 48 h of work in 60 h", apart, deadline, windows, {"DEADLINE": 1.07}),
        Bench("all zones, 48 h of work in 60 h", (together,), deadline, 2 * windows, {"DEADLINE": 1.05}),
        Bench(
            "one zone, with losses (a checkpoint each half hour) and start-ups that vary (sigma 0.5)",
            tuple(replace(s, **rough) for s in apart),
            deadline,
            max(2, windows // 5),
            {},
        ),
        Bench("all zones, 48 h of work on spot alone, no deadline", (spot,), anywhere, 2 * windows, {}),
    ]


def _run(bench: Bench) -> list[str]:
    """Prints the table; returns what is not as it should be."""
    began = time.perf_counter()
    found = simulate(bench.scenarios, bench.policies, windows=bench.windows, processes=os.cpu_count() or 1)
    took_s = time.perf_counter() - began
    print(f"\n{bench.name} ({len(found.windows)} windows, {took_s:.0f} s)")
    print(f"  {'policy':<18}{'cost':>9}{'x optimum (95 %)':>25}{'finish':>9}{'late':>6}{'launches':>10}{'spot':>8}")
    by_name = {summary.policy: summary for summary in summaries(found)}
    for summary in by_name.values():
        print(_line(summary))
    return _missed(bench, found, by_name)


def _line(summary: Summary) -> str:
    ratio, hours = summary.above_optimum, summary.hours
    spot = hours["spot"] / sum(hours.values())
    interval = f"{ratio.value:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"
    return (
        f"  {summary.policy:<18}{'$' + format(summary.cost, '.2f'):>9}{interval:>25}{summary.finish_h:>7.1f} h"
        f"{summary.late:>6}{summary.launches:>10.1f}{spot:>8.0%}"
    )


def _missed(bench: Bench, found: Simulation, by_name: dict[str, Summary]) -> list[str]:
    late = [s.policy for s in by_name.values() if s.late and found.scenarios[0].deadline_s is not None]
    dear = [
        f"{name}: {by_name[name].above_optimum.value:.3f} x optimum, not {most}"
        for name, most in bench.at_most.items()
        if name in by_name and by_name[name].above_optimum.value > most
    ]
    return [f"{bench.name}: {text}" for text in [*(f"{name} was late" for name in late), *dear]]


if __name__ == "__main__":
    sys.exit(main())
