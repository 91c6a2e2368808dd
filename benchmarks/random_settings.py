"""DEADLINE in settings drawn at random: gangs, checkpoints, wrong work, transfer costs, prices that move. None is late.

    python -m benchmarks.random_settings [--count N] [--seed S]

Recorded zones, the same zones resampled, and every kind of synthetic market, each equally often.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import count as counter
from itertools import islice
from pathlib import Path
from random import Random

from benchmarks.machine import print_machine

from perdure.recovery.simulate import Scenario, ZoneTrace
from perdure.recovery.simulate.cloud import TraceCloud
from perdure.recovery.simulate.files import load
from perdure.recovery.simulate.synthetic import KINDS, market, resampled
from perdure.recovery.simulate.world import World

TRACES = Path(__file__).parents[1] / "tests/data/traces/aws-v100"
HOUR = 3600
SETTINGS = 2000
ON_TIME = (1.0, 0.99, 0.9)
ON_TIME_SETTINGS = 200


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.random_settings", description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=SETTINGS)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    print_machine()
    zones = load([TRACES], unavailable_is=1)
    missed = [*late(zones, options.count, options.seed), *on_time(zones, min(options.count, ON_TIME_SETTINGS))]
    return 1 if missed else 0


def late(zones: tuple[ZoneTrace, ...], count: int, seed: int = 0) -> list[str]:
    """Print how many settings of each property were run; returns those that were late."""
    began, drawn, missed = time.process_time(), Counter[str](), []
    for number in range(count):
        properties, late_by = run_setting(zones, number, seed)
        drawn.update(properties)
        if late_by:
            missed.append(f"setting {number} of seed {seed} was late ({late_by}): {', '.join(properties)}")
    print(
        f"\nDEADLINE in {count} random settings: {len(missed)} late ({time.process_time() - began:.0f} s of CPU time)"
    )
    for line in missed:
        print(f"  {line}")
    for name, settings in sorted(drawn.items()):
        print(f"  {name:<40}{settings:>6} settings")
    return missed


def on_time(zones: tuple[ZoneTrace, ...], count: int) -> list[str]:
    """Print what `on_time` saves with varying start-ups and tight deadlines; returns the shares that were not kept."""
    print(f"\non_time in {count} random settings: start-ups vary (sigma 0.5), deadline up to about 1.3 x work")
    settings = islice(_tight(zones), count)
    spent, missed = dict.fromkeys(ON_TIME, 0.0), dict.fromkeys(ON_TIME, 0)
    for scenario, start_at in settings:
        for share in ON_TIME:
            run = World(TraceCloud(replace(scenario, on_time=share)), "DEADLINE", start_at).run()
            spent[share] += run.cost / scenario.num_nodes / scenario.work_s
            missed[share] += run.is_late(scenario.deadline_s)
    for share in ON_TIME:
        print(f"  {share:<6g}cost {spent[share] / spent[1.0]:.3f} of always, late {missed[share]} of {count}")
    return [f"on_time {share:g}: late {n} of {count}" for share, n in missed.items() if n > (1 - share) * count + 1e-9]


def _tight(zones: tuple[ZoneTrace, ...]) -> Iterator[tuple[Scenario, float]]:
    """Settings, and when each begins."""
    for number in counter():
        random = Random(f"on time {number}")
        _, scenario = draw(zones, random)
        if scenario.deadline_s is None or scenario.deadline_s > 1.3 * scenario.work_s or scenario.num_nodes > 4:
            continue
        scenario = replace(scenario, cold_start_sigma=0.5)
        least_s = scenario.work_s + 2 * scenario.worst_cold_start_s + 1800
        scenario = replace(scenario, deadline_s=60 * round(max(scenario.deadline_s or 0, least_s) / 60))
        yield scenario, random.choice(scenario.window_starts(1000, scenario.horizon_s))


def run_setting(zones: tuple[ZoneTrace, ...], number: int, seed: int) -> tuple[list[str], str]:
    """Run DEADLINE in one setting. Returns the setting's properties, and how late the run was; empty if it was not."""
    random = Random(f"{seed} {number}")
    name, scenario = draw(zones, random)
    starts = scenario.window_starts(1000, scenario.horizon_s)
    run = World(TraceCloud(scenario), "DEADLINE", random.choice(starts)).run()
    late_by = ""
    if run.is_late(scenario.deadline_s):
        late_by = "never done" if run.finish_s is None else f"{run.finish_s - (scenario.deadline_s or 0):.0f} s"
    return properties_of(name, scenario), late_by


def draw(zones: tuple[ZoneTrace, ...], random: Random) -> tuple[str, Scenario]:
    """A setting whose deadline an on-demand machine can meet, and the name of its market."""
    nodes = random.choice([1, 1, 4, 16])
    # Only there do gangs lose some of their machines and keep the others.
    kind = "gangs" if nodes > 1 and random.random() < 0.6 else None
    name, drawn = draw_market(zones, random, kind)
    drawn = tuple(replace(zone, counts=tuple(_machines(count, nodes) for count in zone.counts)) for zone in drawn)
    is_wrong = random.random() < 0.3
    work_s = HOUR * random.randint(8, 72)
    scenario = Scenario(
        drawn,
        work_s=work_s,
        cold_start_s=60 * random.randint(5, 30),
        cold_start_sigma=random.choice([0.0, 0.0, 0.5]),
        checkpoint_every_s=random.choice([0, 600, 1800, 3600]),
        notice_s=random.choice([0, 0, 120]),
        num_nodes=nodes,
        egress_per_gb=random.choice([0.0, 0.02]),
        checkpoint_gb=random.choice([10.0, 100.0]),
        stated_work_s=round(work_s * random.choice([0.9, 0.95, 1.2])) if is_wrong else None,
        steps=random.choice([1000, 100_000]) if is_wrong or random.random() < 0.3 else 0,
        seed=random.randrange(1000),
    )
    # The first start may be in vain, and one more is needed.
    least_s = work_s + 2 * scenario.worst_cold_start_s + 1800
    ratio = random.uniform(*random.choice([(1.03, 1.12), (1.12, 1.3), (1.3, 2.5)]))
    deadline_s = max(work_s * ratio, least_s)
    return name, replace(scenario, deadline_s=60 * round(deadline_s / 60))


def draw_market(
    zones: tuple[ZoneTrace, ...], random: Random, kind: str | None = None
) -> tuple[str, tuple[ZoneTrace, ...]]:
    """A market, of a certain `kind` if one is given, and its name."""
    name = kind or random.choice(["recorded", "resampled", *KINDS])
    count = random.choice([1, 3, 6, 9])
    if name in KINDS:
        return name, market(name, zones=count, days=20, seed=random.randrange(10))
    chosen = tuple(random.sample(zones, count))
    return name, chosen if name == "recorded" else resampled(chosen, seed=random.randrange(1000))


def _machines(count: int, nodes: int) -> int:
    """Traces that only say whether there is capacity count one machine: then there is enough."""
    return nodes if count == 1 else count


def properties_of(name: str, scenario: Scenario) -> list[str]:
    assert scenario.deadline_s is not None
    ratio = scenario.deadline_s / scenario.work_s
    stated = scenario.stated_work_s
    return [
        f"market {name}",
        f"{len(scenario.zones)} zones",
        f"{scenario.num_nodes} nodes",
        f"deadline {'up to' if ratio <= 1.2 else 'above'} 1.2 x work",
        f"a checkpoint each {scenario.checkpoint_every_s / 60:.0f} min",
        "starts vary" if scenario.cold_start_sigma else "starts are steady",
        f"work stated {stated / scenario.work_s - 1:+.0%}" if stated else "work stated right",
        *(["steps reported"] if scenario.steps else []),
        *(["moves cost"] if scenario.move_cost else []),
    ]


if __name__ == "__main__":
    sys.exit(main())
