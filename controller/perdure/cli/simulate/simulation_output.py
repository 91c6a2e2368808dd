"""The results of a simulation, as `perdure simulate` prints them."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from math import isfinite

import click

from perdure.cli.output import table, text
from perdure.cli.output.table import Column
from perdure.recovery.market.offers import Market
from perdure.recovery.simulate import Simulation
from perdure.recovery.simulate.results.report import document, windows
from perdure.recovery.simulate.statistics import Interval, Summary

COLUMNS = (
    Column("POLICY"),
    Column("COST", right=True),
    Column("SAVED", right=True),
    Column("x OPTIMUM (95 %)", right=True),
    Column("FINISH", right=True, drop_rank=1),
    Column("x FASTEST", right=True, drop_rank=4),
    Column("LATE", right=True),
    Column("LAUNCHES", right=True, drop_rank=3),
    Column("REFUSED", right=True, drop_rank=5),
    Column("PREEMPTED", right=True, drop_rank=3),
    Column("LOST", right=True, drop_rank=5),
    Column("SPOT", right=True, drop_rank=2),
    Column("ON-DEMAND", right=True, drop_rank=2),
)


def as_table(simulation: Simulation, summaries: Sequence[Summary]) -> None:
    """One line per policy; means over all windows."""
    rows = [_row(summary) for summary in summaries]
    optimum = _optimum_row(simulation, summaries)
    for line in table.render(COLUMNS, [*rows, *([optimum] if optimum else [])], width=table.screen_width()):
        click.echo(line)
    zones = {zone.zone for scenario in simulation.scenarios for zone in scenario.zones}
    suffix = ", each simulated separately" if len(simulation.scenarios) > 1 else ""
    count = len(simulation.windows)
    click.echo(f"Means over {count} windows of {len(zones)} zone{'s' if len(zones) > 1 else ''}{suffix}.", err=True)


def as_json(simulation: Simulation, summaries: Sequence[Summary]) -> None:
    click.echo(json.dumps(document(simulation, tuple(summaries)), indent=2))


def as_csv(simulation: Simulation) -> None:
    """One line per policy and window."""
    records = list(windows(simulation))
    out = io.StringIO()
    writer = csv.DictWriter(out, list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    click.echo(out.getvalue(), nl=False)


def _row(summary: Summary) -> list[str]:
    return [
        summary.policy,
        text.money(summary.cost),
        f"{summary.saving:.1%}",
        _interval(summary.above_optimum),
        f"{summary.finish_h:.1f} h" if isfinite(summary.finish_h) else "-",
        f"{summary.above_fastest:.3f}" if isfinite(summary.above_fastest) else "-",
        str(summary.late),
        f"{summary.launches:.1f}",
        f"{summary.refused:.1f}",
        f"{summary.preemptions:.1f}",
        f"{summary.lost_h:.1f} h",
        f"{summary.hours[Market.SPOT]:.1f} h",
        f"{summary.hours[Market.ON_DEMAND]:.1f} h",
    ]


def _interval(interval: Interval) -> str:
    if not isfinite(interval.value):
        return "-"
    return f"{interval.value:.3f} ({interval.low:.3f} to {interval.high:.3f})"


def _optimum_row(simulation: Simulation, summaries: Sequence[Summary]) -> list[str] | None:
    """The optimum as a row of its own. Only with a deadline is it the same for all policies."""
    costs = next(iter(simulation.optimum_costs.values()))
    if any(s.deadline_s is None for s in simulation.scenarios) or not all(map(isfinite, costs)):
        return None
    cost = sum(costs) / len(costs)
    saving = 1 - cost / summaries[0].cost
    return ["optimum", text.money(cost), f"{saving:.1%}", "1.000", *["-"] * (len(COLUMNS) - 4)]
