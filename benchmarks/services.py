"""What a service costs on recorded spot markets, and how much of the time it has all its replicas.

    python -m benchmarks.services [--days N] [--windows N]

The decisions are the daemon's. Beside it run SpotHedge's published placement, with the same formulas and without
notices (SkyServe uses none), a service in one zone, and on-demand machines. SpotHedge's published figure is a cost of
57 % of on-demand (EuroSys '25, arXiv 2411.01438). Its availability was published for other recordings, so it is
simulated on these, without notices and with the daemon's. With notices, a machine and its replacement are paid for at
the same time, so costs are compared with those. Exits with 1 if the daemon has less availability than SpotHedge here,
with or without notices, or costs more.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import mean

from benchmarks.machine import print_machine

from perdure.recovery.market.services.spec import ReplicaPolicy
from perdure.recovery.simulate.files import load
from perdure.recovery.simulate.services import (
    ONE_ZONE,
    SPOTHEDGE,
    SPREAD,
    ServiceResult,
    ServiceScenario,
    simulate_service,
)
from perdure.recovery.simulate.traces import common_span

TRACES = Path(__file__).parents[1] / "tests/data/traces/aws-v100"
PUBLISHED_COST = 0.57
DAY_S = 24 * 3600.0
REPLICAS = 4
FALLBACK = ReplicaPolicy(min_replicas=REPLICAS, num_overprovision=1, ondemand_fallback=True, spreads=True)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.services", description=__doc__.splitlines()[0])
    parser.add_argument("--days", type=float, default=3.0, help="the length of a window")
    parser.add_argument("--windows", type=int, default=4, help="at even distances in the recording")
    options = parser.parse_args(arguments)
    print_machine()
    zones = load([TRACES], unavailable_is=1)
    base = ServiceScenario(zones, FALLBACK, length_s=options.days * DAY_S)
    rivals = {
        "perdure": base,
        "SpotHedge's placement, no notices": replace(base, placement=SPOTHEDGE, notice_s=0.0),
        "SpotHedge's placement, with notices": replace(base, placement=SPOTHEDGE),
        "perdure without notices": replace(base, placement=SPREAD, notice_s=0.0),
        "one zone, no fallback": replace(base, placement=ONE_ZONE, policy=ReplicaPolicy(min_replicas=REPLICAS)),
        "on demand": replace(base, uses_spot=False, policy=ReplicaPolicy(min_replicas=REPLICAS)),
    }
    begin, end = common_span(zones)
    room = max(0.0, end - begin - base.length_s)
    starts = [begin + room * i / max(1, options.windows - 1) for i in range(options.windows)]
    print(f"\n{REPLICAS} replicas in {len(zones)} zones, {options.windows} windows of {options.days:g} days\n")
    print(f"{'':38}{'all ready':>10}{'one ready':>10}{'cost':>8}{'preempted':>11}")
    results = {name: _run(scenario, starts) for name, scenario in rivals.items()}
    for name, (available, answered, cost, preemptions) in results.items():
        print(f"{name:38}{available:10.3%}{answered:10.3%}{cost:8.3f}{preemptions:11.1f}")
    (ours, _, our_cost, _), (theirs, *_), (with_notices, _, their_cost, _) = list(results.values())[:3]
    print(f"\n{'figure':38}{'perdure':>10}{'peer':>10}{'ratio':>8}")
    _print("cost / on demand (published SpotHedge)", our_cost, PUBLISHED_COST)
    _print("cost / on demand (SpotHedge, notices)", our_cost, their_cost)
    _print("time without all (SpotHedge, notices)", 1 - ours, 1 - with_notices)
    _print("time without all (SpotHedge)", 1 - ours, 1 - theirs)
    return int(ours < max(theirs, with_notices) or our_cost > min(their_cost, PUBLISHED_COST))


def _run(scenario: ServiceScenario, starts: Sequence[float]) -> tuple[float, float, float, float]:
    """The means over windows: all ready, one ready, cost per on-demand cost, preemptions."""
    runs: list[ServiceResult] = [simulate_service(replace(scenario, start_at=start)) for start in starts]
    return (
        mean(run.available for run in runs),
        mean(run.answered for run in runs),
        mean(run.cost_ratio for run in runs),
        mean(run.preemptions for run in runs),
    )


def _print(figure: str, ours: float, theirs: float) -> None:
    ratio = ours / theirs if theirs else float(ours > 0)
    print(f"{figure:38}{ours:10.4f}{theirs:10.4f}{ratio:8.2f}")


if __name__ == "__main__":
    sys.exit(main())
