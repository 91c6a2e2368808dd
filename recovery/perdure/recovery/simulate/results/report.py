"""The results of a simulation as plain data, for JSON and CSV."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from math import isfinite
from typing import Any

from perdure.recovery.market.offers import Market
from perdure.recovery.simulate.simulation import Simulation
from perdure.recovery.simulate.statistics import Summary

Record = dict[str, Any]


def document(simulation: Simulation, summaries: tuple[Summary, ...]) -> Record:
    """The whole result: the scenario, each policy's summary, each window. Unknown numbers are None."""
    first = simulation.scenarios[0]
    return {
        "scenario": {
            "zones": [zone.zone for s in simulation.scenarios for zone in s.zones],
            "zones_together": len(simulation.scenarios) == 1,
            "work_s": first.work_s,
            "deadline_s": first.deadline_s,
            "cold_start_s": first.cold_start_s,
            "cold_start_sigma": first.cold_start_sigma,
            "checkpoint_every_s": first.checkpoint_every_s,
            "notice_s": first.notice_s,
            "num_nodes": first.num_nodes,
            "move_cost_usd": first.move_cost,
            "prior_starts": first.prior_starts,
            "probe_every_s": first.probe_every_s,
            "stated_work_s": first.stated_work_s,
            "on_time": first.on_time,
            "steps": first.steps,
            "seed": first.seed,
        },
        "policies": [_summary(s) for s in summaries],
        "windows": list(windows(simulation)),
    }


def windows(simulation: Simulation) -> Iterator[Record]:
    """One flat record for each policy and window."""
    for name, runs in simulation.runs.items():
        for i, run in enumerate(runs):
            scenario = simulation.scenario(i)
            yield {
                "policy": name,
                "zones": "+".join(zone.zone for zone in scenario.zones),
                "start_at": run.start_at,
                "cost_usd": round(run.cost, 4),
                "optimum_usd": _known(simulation.optimum_costs[name][i]),
                "finish_h": None if run.finish_s is None else round(run.finish_s / 3600, 4),
                "fastest_h": _hours(simulation.fastest_s[i]),
                "late": run.is_late(scenario.deadline_s),
                "launches": run.launches,
                "refused": run.refused,
                "preemptions": run.preemptions,
                "lost_h": round(run.lost_s / 3600, 4),
                "spot_h": round(run.hours[Market.SPOT], 4),
                "on_demand_h": round(run.hours[Market.ON_DEMAND], 4),
            }


def _summary(summary: Summary) -> Record:
    return {name: _plain(value) for name, value in asdict(summary).items()}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(name): _plain(v) for name, v in value.items()}
    return _known(value) if isinstance(value, float) else value


def _known(value: float) -> float | None:
    return round(value, 4) if isfinite(value) else None


def _hours(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds / 3600, 4)
