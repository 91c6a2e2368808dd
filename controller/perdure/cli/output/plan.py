"""The plan of a launch as text: the candidate machines in order, their prices, and a forecast."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from perdure.cli.output import table, text
from perdure.cli.output.table import Column
from perdure.sdk.connection.api_types import Forecast, Offer, Plan, Spread, TaskPlan

COLUMNS = (
    Column("#", right=True, drop_rank=3),
    Column("INFRA", min_width=16, keep_end=True),
    Column("INSTANCE", min_width=10),
    Column("vCPUs", right=True, drop_rank=2),
    Column("MEM(GB)", right=True, drop_rank=2),
    Column("GPUS", min_width=6),
    Column("MARKET"),
    Column("$/HR", right=True),
    Column("SAVED", right=True, drop_rank=1),
)
MIN_RUNS = 20  # simulated runs from which the 10th and 90th percentiles have a meaning


def lines(plan: Plan, *, width: int | None, max_rows: int) -> Iterator[str]:
    """The lines of the plan, with a table of up to `max_rows` offers for each task."""
    if (count := plan.get("num_jobs", 1)) > 1:
        yield f"{count:,} jobs. The prices below are those of one of them."
    for task in plan["tasks"]:
        yield from _task_lines(task, width=width, max_rows=max_rows, is_one_of_several=len(plan["tasks"]) > 1)


def _task_lines(task: TaskPlan, *, width: int | None, max_rows: int, is_one_of_several: bool) -> Iterator[str]:
    nodes = f"{task['num_nodes']} nodes; prices are for all nodes" if task["num_nodes"] > 1 else "1 node"
    shown = task["offers"][:max_rows]
    if not shown and task["total_offers"]:
        yield f"All {task['total_offers']} matching offers are unavailable: the job waits until one becomes available."
        yield from (f"  Unavailable: {reason}" for reason in task["unavailable"])
        return
    yield f"Task {task['name']} ({nodes}):" if is_one_of_several else f"Candidates, in order ({nodes}):"
    rows = [_row(number, offer, task["num_nodes"]) for number, offer in enumerate(shown, start=1)]
    yield from (f"  {line}" for line in table.render(COLUMNS, rows, width=width and width - 2))
    if task["total_offers"] > len(shown):
        yield f"  … and {task['total_offers'] - len(shown)} more"
    if task["saving"]:
        yield f"  The first candidate saves {task['saving']:.0%} of the on-demand price."
    yield from (f"  Unavailable: {reason}" for reason in task["unavailable"])
    if strategy := task.get("strategy"):
        yield f"  Policy {strategy}: {task['strategy_reason']}."
    if (forecast := task.get("forecast")) is not None:
        yield from (f"  {line}" for line in _forecast_lines(forecast))


def _forecast_lines(forecast: Forecast) -> Iterator[str]:
    cost, seconds = forecast["cost"], forecast["seconds"]
    if cost is None:
        yield f"No forecast: {forecast['unavailable_reason']}."
        return
    is_rough = forecast["runs"] < MIN_RUNS
    shares = " (rough)" if is_rough else f" (80% of runs: {_range(cost, text.money)})"
    yield f"Expected cost: {text.money(cost['mean'])}{shares}"
    if seconds is None:
        yield "Expected finish: unknown; too many runs take more than three times the work."
    else:
        shares = " (rough)" if is_rough else f" (80% of runs: {_range(seconds, text.duration)})"
        yield f"Expected finish: in {text.duration(seconds['mean'])}{shares}"
    if forecast["late"] is not None:
        yield f"Missed deadline: {forecast['late']:.0%} of {forecast['runs']} simulated runs"
    yield f"Forecast from {forecast['runs']} simulated runs, based on {forecast['assumed']}."
    if is_rough:
        yield f"That is rough: no more runs fitted in the time, and it takes {MIN_RUNS} to say how far they spread."


def _range(spread: Spread, form: Callable[[float], str]) -> str:
    return f"{form(spread['low'])} to {form(spread['high'])}"


def _row(number: int, offer: Offer, num_nodes: int) -> list[str]:
    area = "/".join(part for part in (offer["cloud"], offer["region"], offer["zone"]) if part)
    return [
        str(number),
        area,
        offer["instance_type"],
        f"{offer['vcpus']:g}",
        f"{offer['memory_gib']:g}",
        offer["accelerators"] or "-",
        offer["market"],
        text.money(offer["price_per_hour"] * num_nodes),
        text.saving(offer["price_per_hour"], offer["on_demand_price_per_hour"]) or "-",
    ]
