"""Means over windows, and their confidence intervals: overlapping windows are not independent evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from random import Random

from perdure.recovery.market.offers import Market
from perdure.recovery.simulate.scenario import Run
from perdure.recovery.simulate.simulation import Simulation

_RESAMPLES = 1000
_CONFIDENCE = 0.95


@dataclass(frozen=True)
class Interval:
    """A mean (or a ratio of means), and the bounds within which it lies with 95 % confidence."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Summary:
    """One policy over all windows: means, in USD and hours."""

    policy: str
    windows: int
    cost: float
    saving: float  # the share of the on-demand cost that was saved
    above_optimum: Interval  # mean cost over the optimum's mean cost, in the same windows
    finish_h: float
    above_fastest: float  # finish times over the soonest possible ones
    late: int  # windows that missed the deadline, or did not finish
    launches: float
    refused: float
    preemptions: float
    lost_h: float
    hours: dict[Market, float]


def summarize(simulation: Simulation, *, seed: int = 0) -> tuple[Summary, ...]:
    """One summary per policy, in the order of `simulation.runs`."""
    blocks = _blocks(simulation)
    return tuple(_summary(simulation, name, blocks, seed) for name in simulation.runs)


def _summary(simulation: Simulation, name: str, blocks: Sequence[Sequence[int]], seed: int) -> Summary:
    runs, optimum_costs = simulation.runs[name], simulation.optimum_costs[name]
    base = simulation.runs["on-demand"]
    finishes = [r.finish_s for r in runs if r.finish_s is not None]
    late = sum(r.is_late(simulation.scenario(i).deadline_s) or r.finish_s is None for i, r in enumerate(runs))

    known = [[i for i in block if isfinite(optimum_costs[i])] for block in blocks]
    sums = [(sum(runs[i].cost for i in block), sum(optimum_costs[i] for i in block)) for block in known]
    return Summary(
        policy=name,
        windows=len(runs),
        cost=_mean([r.cost for r in runs]),
        saving=1 - _ratio(sum(r.cost for r in runs), sum(r.cost for r in base)),
        above_optimum=bootstrap(sums, seed=seed),
        finish_h=_mean(finishes) / 3600,
        above_fastest=_above_fastest(simulation, runs),
        late=late,
        launches=_mean([r.launches for r in runs]),
        refused=_mean([r.refused for r in runs]),
        preemptions=_mean([r.preemptions for r in runs]),
        lost_h=_mean([r.lost_s for r in runs]) / 3600,
        hours={market: _mean([r.hours[market] for r in runs]) for market in Market},
    )


def _above_fastest(simulation: Simulation, runs: Sequence[Run]) -> float:
    pairs = [
        (run.finish_s, soonest)
        for run, soonest in zip(runs, simulation.fastest_s, strict=True)
        if run.finish_s is not None and soonest is not None
    ]
    return _ratio(sum(finish for finish, _ in pairs), sum(soonest for _, soonest in pairs))


def bootstrap(sums: Sequence[tuple[float, float]], *, seed: int) -> Interval:
    """The ratio of two sums, given per block, and its percentile interval from resampling blocks."""
    random = Random(seed)  # noqa: S311 - statistics, nothing secret
    drawn = sorted(_ratio_of_sums(random.choices(sums, k=len(sums))) for _ in range(_RESAMPLES))
    tail = round((1 - _CONFIDENCE) / 2 * _RESAMPLES)
    return Interval(_ratio_of_sums(sums), drawn[tail], drawn[-1 - tail])


def _ratio_of_sums(pairs: Sequence[tuple[float, float]]) -> float:
    return _ratio(sum(one for one, _ in pairs), sum(other for _, other in pairs))


def _blocks(simulation: Simulation) -> list[list[int]]:
    """Indices of windows, grouped so that windows of the same scenario that overlap are in one or adjacent blocks."""
    blocks: dict[tuple[int, int], list[int]] = {}
    for i, window in enumerate(simulation.windows):
        scenario = simulation.scenarios[window.scenario]
        since = window.start_at - scenario.span[0]
        blocks.setdefault((window.scenario, int(since // scenario.horizon_s)), []).append(i)
    return list(blocks.values())


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else float("nan")


def _ratio(one: float, other: float) -> float:
    return one / other if other else float("nan")
