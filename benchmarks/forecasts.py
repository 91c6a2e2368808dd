"""Whether forecasts are calibrated: of those that say "8 times in 10 between", 75 to 85 % should hold.

    python -m benchmarks.forecasts [--count N] [--seed S]

A controller has run one job in a market, and forecasts the next one, as `perdure jobs launch --dryrun` does. Then that
job runs. Recorded zones, the same zones resampled, and every kind of synthetic market, each equally often.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from random import Random

from benchmarks.machine import print_machine
from benchmarks.random_settings import TRACES, draw_market

from perdure.recovery.market.view import MarketView
from perdure.recovery.simulate import Scenario, ZoneTrace
from perdure.recovery.simulate.cloud import TraceCloud
from perdure.recovery.simulate.files import load
from perdure.recovery.simulate.forecast import CHECKPOINT_EVERY_S, Spread, draw_runs, summarize_runs
from perdure.recovery.simulate.world import World

HOUR = 3600
FORECASTS = 1000
RUNS = 40  # as many as the controller simulates
LEAST, MOST = 0.75, 0.85
_LEFT = 0.7  # of a market, when the first of its two jobs is launched
STRATEGIES = ("CHEAPEST", "VALUE", "DEADLINE")


@dataclass(frozen=True)
class Outcome:
    """One forecast, and what came of it."""

    market: str
    strategy: str
    held: dict[str, bool]  # by quantity: whether the truth lay between the quantiles


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.forecasts", description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=FORECASTS)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    print_machine()
    return 1 if calibration(load([TRACES], unavailable_is=1), options.count, options.seed) else 0


def calibration(zones: tuple[ZoneTrace, ...], count: int, seed: int = 0) -> list[str]:
    """Print how many forecasts held, by market and strategy; returns the quantities that are not calibrated."""
    began = time.process_time()
    outcomes = [run_forecast(zones, number, seed) for number in range(count)]
    print(f"\n{count} forecasts: how many held (target {LEAST:.0%} to {MOST:.0%}) ", end="")
    print(f"({time.process_time() - began:.0f} s of CPU time)")
    print(f"  {'':<24}{'forecasts':>10}{'cost':>8}{'end':>8}")
    groups = {"all": outcomes}
    for outcome in outcomes:
        groups.setdefault(f"market {outcome.market}", []).append(outcome)
        groups.setdefault(outcome.strategy, []).append(outcome)
    for name, members in groups.items():
        shares = "".join(f"{_share(members, quantity):>8.0%}" for quantity in ("cost", "end"))
        print(f"  {name:<24}{len(members):>10}{shares}")
    off = {quantity: _share(outcomes, quantity) for quantity in ("cost", "end")}
    return [f"{share:.0%} of the forecasts of {name} held" for name, share in off.items() if not LEAST <= share <= MOST]


def _share(outcomes: Sequence[Outcome], quantity: str) -> float:
    known = [outcome.held[quantity] for outcome in outcomes if quantity in outcome.held]
    return sum(known) / len(known) if known else float("nan")


def run_forecast(zones: tuple[ZoneTrace, ...], number: int, seed: int) -> Outcome:
    random = Random(f"forecast {seed} {number}")
    name, drawn = draw_market(zones, random)
    strategy = random.choice(STRATEGIES)
    work_s = HOUR * random.randint(4, 24)
    cloud = TraceCloud(_scenario(drawn, work_s, round(work_s * random.uniform(1.3, 2.5)), strategy, random))
    # The job before has ended when the next one is launched.
    begin, end = cloud.scenario.span
    earlier = World(cloud, strategy, random.choice(cloud.scenario.window_starts(1000, _LEFT * (end - begin))))
    earlier.run()
    now = earlier.now
    world = World(cloud, strategy, now)
    world.history, world.unavailable = earlier.history, earlier.unavailable
    market = MarketView(cloud.offers(now), earlier.unavailable, history=earlier.history)
    (task,) = world.job.tasks
    forecast = summarize_runs(list(islice(draw_runs(task, market, now, seed=number), RUNS)), cloud.scenario.deadline_s)
    truth = world.run()
    held = {"cost": _holds(forecast.cost, truth.cost)}
    if forecast.seconds is not None and truth.finish_s is not None:
        held["end"] = _holds(forecast.seconds, truth.finish_s)
    return Outcome(name, strategy, held)


def _scenario(zones: tuple[ZoneTrace, ...], work_s: int, deadline_s: int, strategy: str, random: Random) -> Scenario:
    return Scenario(
        zones,
        work_s=work_s,
        deadline_s=deadline_s if strategy == "DEADLINE" else None,
        cold_start_s=60 * random.randint(5, 30),
        cold_start_sigma=0.3,
        checkpoint_every_s=CHECKPOINT_EVERY_S,
        use_on_demand=strategy == "DEADLINE",
        seed=random.randrange(1000),
    )


def _holds(spread: Spread, truth: float) -> bool:
    return spread.low - 1e-6 <= truth <= spread.high + 1e-6


if __name__ == "__main__":
    sys.exit(main())
