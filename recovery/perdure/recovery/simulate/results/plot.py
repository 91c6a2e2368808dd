"""Plots: cost by deadline slack (or by finish time), and one run over the zones' availability.

Needs matplotlib, which is imported only when something is drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from html import escape
from io import StringIO
from math import isfinite
from typing import TYPE_CHECKING, Any

from perdure.recovery.market.offers import Market
from perdure.recovery.simulate.scenario import MachineStay, Run, Scenario
from perdure.recovery.simulate.simulation import Simulation, simulate

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FILE_SUFFIXES = (".png", ".svg", ".pdf", ".html")

# Deadline over work, for the curves.
SLACKS = (1.05, 1.1, 1.25, 1.5, 2.0)
MAX_WINDOWS = 8
# Deadlines are rounded to a multiple of this, so that the optimum's grid stays coarse.
_DEADLINE_STEP_S = 900

_COLOURS = {"on-demand": "#7f7f7f", "greedy": "#bcbd22", "uniform-progress": "#ff7f0e", "lifetime-oracle": "#17becf"}
_OWN_COLOURS = ("#1f77b4", "#d62728", "#9467bd", "#8c564b", "#e377c2")
_AVAILABLE, _WORKS, _STARTS, _ON_DEMAND = "#cfe8cf", "#1f5fa8", "#8fbbe8", "#b03030"


def windows_needed(scenarios: Sequence[Scenario]) -> int:
    """An upper bound of the number of windows that `draw` simulates."""
    return MAX_WINDOWS * len(SLACKS) * len(scenarios) if _have_deadline(scenarios) else 0


def draw(
    simulation: Simulation,
    policies: Sequence[str],
    *,
    path: str,
    processes: int = 1,
    max_windows: int = MAX_WINDOWS,
    on_progress: Callable[[int], None] = lambda _: None,
) -> str:
    """Write the plot to `path`, in the format of its suffix (one of `FILE_SUFFIXES`). Returns `path`.

    Raises ModuleNotFoundError if matplotlib is not installed, and OSError.
    """
    from matplotlib.figure import Figure

    zones = max(len(s.zones) for s in simulation.scenarios)
    figure = Figure(figsize=(11, 6.5 + 0.3 * zones), layout="constrained")
    above, below = figure.subplots(2, 1, height_ratios=[5, 1.5 + 0.3 * zones])
    colours = _colours(simulation.runs)
    if _have_deadline(simulation.scenarios):
        swept = _sweep(simulation.scenarios, policies, max_windows, processes, on_progress)
        _cost_by_slack(above, swept, colours)
    else:
        _cost_by_delay(above, simulation, colours)
    shown = _typical_window(simulation, policies[0])
    _timeline(below, simulation.scenario(shown), simulation.runs[policies[0]][shown], policies[0])
    if path.endswith(".html"):
        text = StringIO()
        figure.savefig(text, format="svg")
        svg = text.getvalue()
        title = escape(f"{', '.join(policies)}: simulation")
        style = "body { margin: 1em auto; max-width: 75em; } svg { width: 100%; height: auto; }"
        head = f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{title}</title><style>{style}</style>\n"
        with open(path, "w", encoding="utf-8") as file:
            file.write(head + svg[svg.index("<svg") :])
    else:
        figure.savefig(path, dpi=130)
    return path


def _colours(names: Sequence[str] | Any) -> dict[str, str]:
    own = [name for name in names if name not in _COLOURS]
    return _COLOURS | {name: _OWN_COLOURS[i % len(_OWN_COLOURS)] for i, name in enumerate(own)}


def _have_deadline(scenarios: Sequence[Scenario]) -> bool:
    return all(s.deadline_s is not None for s in scenarios)


# --- cost -------------------------------------------------------------------------------------------------------------


def _sweep(
    scenarios: Sequence[Scenario],
    policies: Sequence[str],
    max_windows: int,
    processes: int,
    on_progress: Callable[[int], None],
) -> dict[float, Simulation]:
    """The same simulation with other deadlines, by deadline over work. Deadlines that are too tight are left out."""
    swept = {}
    for slack in SLACKS:
        with_slack = [
            replace(s, deadline_s=round(s.work_s * slack / _DEADLINE_STEP_S) * _DEADLINE_STEP_S) for s in scenarios
        ]
        if all((s.deadline_s or 0) >= s.work_s + 2 * s.worst_cold_start_s for s in with_slack):
            swept[slack] = simulate(
                with_slack, policies, windows=max_windows, processes=processes, on_progress=on_progress
            )
    return swept


def _cost_by_slack(axes: Axes, swept: dict[float, Simulation], colours: dict[str, str]) -> None:
    slacks = list(swept)
    names = list(next(iter(swept.values())).runs) if swept else []
    any_late = False
    for name in names:
        costs = [_mean([r.cost for r in one.runs[name]]) for one in swept.values()]
        axes.plot(slacks, costs, marker="o", color=colours[name], label=name)
        # A policy that misses the deadline can be cheaper than the optimum.
        late = [i for i, one in enumerate(swept.values()) if _is_ever_late(one, name)]
        any_late = any_late or bool(late)
        axes.plot(
            [slacks[i] for i in late], [costs[i] for i in late], "o", color=colours[name], markerfacecolor="white"
        )
    least = [_mean(next(iter(one.optimum_costs.values()))) for one in swept.values()]
    axes.plot(slacks, least, marker="s", linestyle="--", color="black", label="optimum")
    axes.set_xlabel("deadline / work" + (" (hollow: late in some windows)" if any_late else ""))
    axes.set_xticks(slacks, [f"{slack:g}" for slack in slacks])
    axes.set_ylim(bottom=0)
    _finish_axes(axes, "Cost by deadline slack")


def _is_ever_late(simulation: Simulation, name: str) -> bool:
    return any(run.is_late(simulation.scenario(i).deadline_s) for i, run in enumerate(simulation.runs[name]))


def _cost_by_delay(axes: Axes, simulation: Simulation, colours: dict[str, str]) -> None:
    for name, runs in simulation.runs.items():
        if name == "on-demand":
            continue  # so far above the others that they could not be distinguished
        done = [r for r in runs if r.finish_s is not None]
        hours, costs = [(r.finish_s or 0) / 3600 for r in done], [r.cost for r in done]
        axes.scatter(hours, costs, s=8, alpha=0.35, color=colours[name])
        axes.scatter(
            [_mean(hours)], [_mean(costs)], s=90, marker="X", edgecolor="black", color=colours[name], label=name
        )
    axes.set_xlabel("finish time (hours); crosses are means")
    alone = _mean([r.cost for r in simulation.runs["on-demand"]])
    _finish_axes(axes, f"Cost by finish time, one dot per window; on-demand alone: ${alone:.0f}")


def _finish_axes(axes: Axes, title: str) -> None:
    axes.set_ylabel("cost (USD)")
    axes.grid(alpha=0.3)
    axes.set_title(title, loc="left")
    axes.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)


def _mean(values: Sequence[float]) -> float:
    known = [v for v in values if isfinite(v)]
    return sum(known) / len(known) if known else float("nan")


# --- one run ----------------------------------------------------------------------------------------------------------


def _typical_window(simulation: Simulation, policy: str) -> int:
    """Of the windows with about the median cost of the policy, the one with the most preemptions."""
    runs = simulation.runs[policy]
    order = sorted(range(len(runs)), key=lambda i: runs[i].cost)
    middle = order[len(order) * 2 // 5 : len(order) * 3 // 5 + 1]
    return max(middle, key=lambda i: runs[i].preemptions)


def _timeline(axes: Axes, scenario: Scenario, run: Run, policy: str) -> None:
    ends = [s.ended_at for s in run.stays]
    until = max([run.start_at + (scenario.deadline_s or 0), *ends])
    for row in range(len(scenario.zones)):
        axes.broken_barh(_capacity(scenario, row, run.start_at, until), (row - 0.4, 0.8), color=_AVAILABLE)
    for stay in run.stays:
        _draw_stay(axes, stay, run.start_at, len(scenario.zones))
    uses_on_demand = any(stay.market is Market.ON_DEMAND for stay in run.stays)
    names = [zone.zone for zone in scenario.zones] + (["on-demand"] if uses_on_demand else [])
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlim(0, (until - run.start_at) / 3600 * 1.01)
    if scenario.deadline_s is not None:
        axes.axvline(scenario.deadline_s / 3600, color="black", linestyle=":")
    axes.set_xlabel("hours after the start")
    took = "not finished" if run.finish_s is None else f"finished after {run.finish_s / 3600:.1f} h"
    axes.set_title(f"{policy}: a typical window, ${run.cost:.2f}, {took}, {run.preemptions} preemptions", loc="left")
    _add_legend(axes, has_deadline=scenario.deadline_s is not None)


def _capacity(scenario: Scenario, zone: int, begin: float, end: float) -> list[tuple[float, float]]:
    """(start, length) in hours after `begin`: when the zone has capacity for all machines."""
    trace, spans, at = scenario.zones[zone], [], begin
    while at < end:
        until = min(end, trace.next_change(scenario.num_nodes, at))
        if trace.has_capacity(scenario.num_nodes, at):
            spans.append(((at - begin) / 3600, (until - at) / 3600))
        at = until
    return spans


def _draw_stay(axes: Axes, stay: MachineStay, start_at: float, on_demand_row: int) -> None:
    on_demand = stay.market is Market.ON_DEMAND
    row = on_demand_row if on_demand else stay.zone
    works_at = stay.ended_at if stay.running_at is None else stay.running_at
    for begin, end, colour in (
        (stay.launched_at, works_at, _STARTS),
        (works_at, stay.ended_at, _ON_DEMAND if on_demand else _WORKS),
    ):
        axes.broken_barh([((begin - start_at) / 3600, (end - begin) / 3600)], (row - 0.25, 0.5), color=colour)


def _add_legend(axes: Axes, *, has_deadline: bool) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    meanings = {
        "spot available": _AVAILABLE,
        "starting": _STARTS,
        "running on spot": _WORKS,
        "running on-demand": _ON_DEMAND,
    }
    shown: list[Patch | Line2D] = [Patch(color=colour, label=label) for label, colour in meanings.items()]
    if has_deadline:
        shown.append(Line2D([], [], color="black", linestyle=":", label="deadline"))
    axes.legend(handles=shown, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
