"""`make bench`: what recovery policies cost on recorded spot markets, against published ones and the exact optimum.

    python -m benchmarks.policies [--windows N] [--traces PATH] [--split | --ablation | --foreign]

Prints every table of docs/concepts/policies.md. Without --traces, uses those that come with the tests. `--split` runs
the halves of the traces, and every other zone, separately. `--ablation` prints only what each part of DEADLINE is
worth. `--foreign` prints other markets instead, whose stricter targets are not all met yet (`make bench-markets`).
"""

from __future__ import annotations

import argparse
import os
import resource
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import ablation, decisions, forecasts, foreign_markets, random_settings
from benchmarks.machine import print_machine

from perdure.recovery.simulate import Scenario, Simulation, ZoneTrace, simulate
from perdure.recovery.simulate.cloud import TraceCloud
from perdure.recovery.simulate.files import load
from perdure.recovery.simulate.statistics import Summary, summarize
from perdure.recovery.simulate.world import World

TRACES = Path(__file__).parents[1] / "tests/data/traces/aws-v100"
HOUR = 3600
WINDOWS = 16
PROCESSES = os.cpu_count() or 1

# The published setting: 48 hours of work in 60, 12 minutes from launch to work.
PUBLISHED = {"work_s": 48 * HOUR, "deadline_s": 60 * HOUR, "cold_start_s": 720}
SLACKS = (1.05, 1.1, 1.25, 1.5, 2.0)
SHORT_HOURS, SHORT_SLACKS = (12, 24), (1.05, 1.1, 1.25)
ROUGH = {"cold_start_sigma": 0.5, "checkpoint_every_s": 1800.0}

# At this time, 2,400 windows take a minute on two cores.
CPU_MS = 50.0
DECISIONS_MS = 25.0  # of it, for all decisions of DEADLINE
TIMED = 24

ORACLE = "lifetime-oracle"
ANYWHERE = ("VALUE", "CHEAPEST", "EAGER_NEXT_REGION")
MAX_COST, MAX_TIME = 1.03, 1.05


@dataclass(frozen=True)
class Bench:
    """One table of the published setting."""

    name: str
    scenarios: tuple[Scenario, ...]
    windows: int
    max_ratio: float  # the maximum of DEADLINE's cost over the optimum's


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.policies", description=__doc__.splitlines()[0])
    parser.add_argument(
        "--windows", type=int, default=WINDOWS, help="for all zones as one market; half as many for each zone"
    )
    parser.add_argument("--traces", type=Path, default=Path(os.environ.get("PERDURE_TRACES", TRACES)))
    chosen = parser.add_mutually_exclusive_group()
    chosen.add_argument(
        "--split", action="store_true", help="run the halves of the traces, and every other zone, separately"
    )
    chosen.add_argument("--ablation", action="store_true", help="print only what each part is worth")
    chosen.add_argument(
        "--foreign", action="store_true", help="print other markets instead: priced moves, resampled and synthetic ones"
    )
    options = parser.parse_args(arguments)
    zones = load([options.traces], unavailable_is=1)
    print_machine()
    if options.ablation:
        missed = ablation.main(zones, PUBLISHED, options.windows)
    elif options.foreign:
        missed = foreign(zones, options.windows)
    elif options.split:
        missed = [m for part, members in _parts(zones) for m in published(members, options.windows, part)]
    else:
        missed = [
            *published(zones, options.windows),
            *by_slack(zones, options.windows),
            *short_jobs(zones, options.windows),
            *never_late(zones, options.windows),
            *without_deadline(zones, options.windows),
            *decisions.main(),
            *speed(zones),
            *ablation.main(zones, PUBLISHED, options.windows // 2),
        ]
    cpu_s = sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    print(f"\nin all: {cpu_s:.0f} s of CPU time, {cpu_s / PROCESSES:.0f} s on each of {PROCESSES} cores")
    if missed:
        print("\nmissed:\n  " + "\n  ".join(missed), file=sys.stderr)
    return 1 if missed else 0


def _parts(zones: tuple[ZoneTrace, ...]) -> list[tuple[str, tuple[ZoneTrace, ...]]]:
    halves = [(0.0, 0.5, "first half"), (0.5, 1.0, "second half")]
    slices = [(f", {name}", tuple(z.slice(begin, end) for z in zones)) for begin, end, name in halves]
    return [*slices, (", zones 1, 3, 5 …", zones[::2]), (", zones 2, 4, 6 …", zones[1::2])]


def _per_zone(zones: tuple[ZoneTrace, ...], **durations: float) -> tuple[Scenario, ...]:
    return tuple(Scenario((zone,), **durations) for zone in zones)  # type: ignore[arg-type]


# --- the published setting --------------------------------------------------------------------------------------------


def published(zones: tuple[ZoneTrace, ...], windows: int, part: str = "") -> list[str]:
    return [
        *_run(Bench(f"one zone, 48 h of work in 60 h{part}", _per_zone(zones, **PUBLISHED), windows // 2, 1.07)),
        *_run(Bench(f"all zones, 48 h of work in 60 h{part}", (Scenario(zones, **PUBLISHED),), windows, 1.05)),
    ]


def _run(bench: Bench) -> list[str]:
    """Print the table; returns the targets that were missed."""
    began = time.perf_counter()
    simulation = simulate(bench.scenarios, ["DEADLINE"], windows=bench.windows, processes=PROCESSES)
    took_s = time.perf_counter() - began
    print(f"\n{bench.name} ({len(simulation.windows)} windows, {took_s:.0f} s)")
    print(f"  {'policy':<18}{'cost':>9}{'x optimum (95 %)':>25}{'finish':>9}{'late':>6}{'launches':>10}{'spot':>8}")
    by_name = {summary.policy: summary for summary in summarize(simulation)}
    for summary in by_name.values():
        print(_line(summary))
    own = by_name["DEADLINE"]
    ratio = own.above_optimum.value
    used = (ratio - 1) / (bench.max_ratio - 1)
    print(f"  DEADLINE: {ratio:.3f} x optimum, target {bench.max_ratio:g}: {used:.0%} of what it allows")
    expensive = [f"{bench.name}: {ratio:.3f} x optimum, not {bench.max_ratio}"] if ratio > bench.max_ratio else []
    return expensive + ([f"{bench.name}: late in {own.late} windows"] if own.late else [])


def _line(summary: Summary) -> str:
    ratio, hours = summary.above_optimum, summary.hours
    spot = hours["spot"] / sum(hours.values())
    interval = f"{ratio.value:.3f} ({ratio.low:.3f} to {ratio.high:.3f})"
    return (
        f"  {summary.policy:<18}{'$' + format(summary.cost, '.2f'):>9}{interval:>25}{summary.finish_h:>7.1f} h"
        f"{summary.late:>6}{summary.launches:>10.1f}{spot:>8.0%}"
    )


# --- tight and loose deadlines ----------------------------------------------------------------------------------------


def by_slack(zones: tuple[ZoneTrace, ...], windows: int) -> list[str]:
    began, late = time.perf_counter(), []
    rows: dict[str, list[str]] = {}
    for slack in SLACKS:
        durations = {**PUBLISHED, "deadline_s": round(48 * HOUR * slack)}
        for name, scenarios, count in (
            ("one zone", _per_zone(zones, **durations), windows // 4),
            ("all zones", (Scenario(zones, **durations),), windows // 2),
        ):
            simulation = simulate(scenarios, ["DEADLINE"], windows=max(2, count), processes=PROCESSES)
            for summary in summarize(simulation)[1:]:
                rows.setdefault(f"{name}, {summary.policy}", []).append(f"{summary.above_optimum.value:.3f}")
                if summary.policy == "DEADLINE" and summary.late:
                    late.append(f"{name}, deadline {slack} x work: late in {summary.late} windows")
    print(f"\ncost over the optimum's, by the deadline over the work ({time.perf_counter() - began:.0f} s)")
    print(f"  {'':<28}" + "".join(f"{slack:>9g}" for slack in SLACKS))
    for name, ratios in rows.items():
        print(f"  {name:<28}" + "".join(f"{ratio:>9}" for ratio in ratios))
    return late


def short_jobs(zones: tuple[ZoneTrace, ...], windows: int) -> list[str]:
    """With slack of little more than a handful of start-ups, uncertainty about them costs most."""
    began, late = time.perf_counter(), []
    print("\nshort jobs, by the deadline over the work: DEADLINE's cost over uniform progress's")
    print(f"  {'':<28}" + "".join(f"{slack:>9g}" for slack in SHORT_SLACKS))
    for hours in SHORT_HOURS:
        for name, per_zone, count in (("one zone", True, windows // 4), ("all zones", False, windows // 2)):
            ratios = []
            for slack in SHORT_SLACKS:
                durations = {**PUBLISHED, "work_s": hours * HOUR, "deadline_s": round(hours * HOUR * slack)}
                scenarios = _per_zone(zones, **durations) if per_zone else (Scenario(zones, **durations),)
                simulation = simulate(
                    scenarios, ["DEADLINE"], windows=max(2, count), processes=PROCESSES, with_optimum=False
                )
                ratios.append(_cost(simulation, "DEADLINE") / _cost(simulation, "uniform-progress"))
                missed = sum(
                    r.is_late(simulation.scenario(i).deadline_s) for i, r in enumerate(simulation.runs["DEADLINE"])
                )
                late += [f"{name}, {hours} h, deadline {slack} x work: late in {missed} windows"] if missed else []
            print(f"  {f'{hours} h, {name}':<28}" + "".join(f"{ratio:>9.3f}" for ratio in ratios))
    print(f"  ({time.perf_counter() - began:.0f} s)")
    return late


def never_late(zones: tuple[ZoneTrace, ...], windows: int) -> list[str]:
    """With varying start-ups and lost work: no run may be late, and uniform progress should not be cheaper."""
    began, late, runs = time.perf_counter(), [], 0
    print("\nvarying start-ups (sigma 0.5), a checkpoint every half hour: DEADLINE's cost over uniform progress's")
    print(f"  {'':<28}" + "".join(f"{slack:>9g}" for slack in SLACKS))
    for name, per_zone, count in (("one zone", True, windows // 4), ("all zones", False, windows // 2)):
        ratios = []
        for slack in SLACKS:
            durations = {**PUBLISHED, **ROUGH, "deadline_s": round(48 * HOUR * slack)}
            scenarios = _per_zone(zones, **durations) if per_zone else (Scenario(zones, **durations),)  # type: ignore[arg-type]
            simulation = simulate(
                scenarios, ["DEADLINE"], windows=max(2, count), processes=PROCESSES, with_optimum=False
            )
            own, other = (_cost(simulation, policy) for policy in ("DEADLINE", "uniform-progress"))
            ratios.append(own / other)
            missed = sum(
                r.is_late(simulation.scenario(i).deadline_s) for i, r in enumerate(simulation.runs["DEADLINE"])
            )
            runs += len(simulation.windows)
            late += [f"{name}, rough, deadline {slack} x work: late in {missed} windows"] if missed else []
        print(f"  {name:<28}" + "".join(f"{ratio:>9.3f}" for ratio in ratios))
    print(f"  late: {len(late)} of {len(SLACKS) * 2} settings, {runs} windows ({time.perf_counter() - began:.0f} s)")
    return late


def _cost(simulation: Simulation, policy: str) -> float:
    return sum(run.cost for run in simulation.runs[policy])


# --- CPU time ---------------------------------------------------------------------------------------------------------


def speed(zones: tuple[ZoneTrace, ...]) -> list[str]:
    """A window with the baselines and the optimum, in the zones with the least and the most spot capacity."""
    print(f"\nCPU time of a window of one zone with DEADLINE, baselines and optimum (target {CPU_MS:g} ms)")
    by_room = sorted(zones, key=lambda zone: sum(count > 0 for count in zone.counts) / len(zone.counts))
    missed = []
    for zone in (by_room[0], by_room[-1]):
        began = time.process_time()
        simulation = simulate(Scenario((zone,), **PUBLISHED), ["DEADLINE"], windows=TIMED)
        took_ms = 1000 * (time.process_time() - began) / len(simulation.windows)
        share = sum(count > 0 for count in zone.counts) / len(zone.counts)
        print(
            f"  {zone.zone}, spot available {share:>4.0%} of the time "
            f"{took_ms:>8.1f} ms {took_ms / CPU_MS:>6.2f} x target"
        )
        missed += [f"a window of {zone.zone} takes {took_ms:.0f} ms"] if took_ms > CPU_MS else []
    return [*missed, *_decisions_speed(by_room[0])]


def _decisions_speed(zone: ZoneTrace) -> list[str]:
    """A window of DEADLINE alone where launches are refused most often: nearly all of it is decisions."""
    scenario = Scenario((zone,), **PUBLISHED)
    cloud = TraceCloud(scenario)
    starts = scenario.window_starts(TIMED, scenario.horizon_s)
    World(cloud, "DEADLINE", starts[0]).run()  # fills the caches of the prices and of capacity
    began = time.process_time()
    refused = sum(World(cloud, "DEADLINE", start).run().refused for start in starts) / len(starts)
    took_ms = 1000 * (time.process_time() - began) / len(starts)
    print(
        f"  {zone.zone}, DEADLINE alone, {refused:.0f} refused launches "
        f"{took_ms:>5.1f} ms {took_ms / DECISIONS_MS:>6.2f} x target of {DECISIONS_MS:g} ms"
    )
    return [f"the decisions of a window of {zone.zone} take {took_ms:.0f} ms"] if took_ms > DECISIONS_MS else []


# --- markets that nothing was tuned on --------------------------------------------------------------------------------


def foreign(zones: tuple[ZoneTrace, ...], windows: int) -> list[str]:
    return [
        *foreign_markets.main(zones, windows),
        *random_settings.late(zones, random_settings.SETTINGS),
        *random_settings.on_time(zones, random_settings.ON_TIME_SETTINGS),
        *forecasts.calibration(zones, forecasts.FORECASTS),
    ]


# --- no deadline ------------------------------------------------------------------------------------------------------


def without_deadline(zones: tuple[ZoneTrace, ...], windows: int) -> list[str]:
    began = time.perf_counter()
    spot = Scenario(zones, work_s=48 * HOUR, cold_start_s=720, use_on_demand=False)
    simulation = simulate(spot, ANYWHERE, windows=2 * windows, processes=PROCESSES, with_optimum=False)
    by_name = {summary.policy: summary for summary in summarize(simulation)}
    oracle = by_name[ORACLE]
    took_s = time.perf_counter() - began
    print(f"\nall zones, 48 h of work on spot alone, no deadline ({2 * windows} windows, {took_s:.0f} s)")
    print(f"  {'policy':<20}{'cost':>9}{'x oracle':>10}{'finish':>9}{'x oracle':>10}")
    missed = []
    for summary in by_name.values():
        cost, finish = summary.cost / oracle.cost, summary.finish_h / oracle.finish_h
        usd = "$" + format(summary.cost, ".2f")
        print(f"  {summary.policy:<20}{usd:>9}{cost:>10.3f}{summary.finish_h:>7.1f} h{finish:>10.3f}")
        if summary.policy == "VALUE" and (cost > MAX_COST or finish > MAX_TIME):
            missed.append(f"VALUE costs {cost:.3f} x the oracle, not {MAX_COST}, in {finish:.3f} x its time")
    print(f"  target of VALUE: {MAX_COST:g} x the oracle's cost at {MAX_TIME:g} x its finish time")
    return missed


if __name__ == "__main__":
    sys.exit(main())
