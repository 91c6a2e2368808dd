"""The plan of a launch: which machines would be tried, in order, and what they cost."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from perdure.cli import table, text
from perdure.cli.table import Column
from perdure.sdk.records import Forecast, Offer, Plan, Spread, TaskPlan

COLUMNS = (
    Column("#", right=True, drop=3),
    Column("INFRA", least=16, keep_end=True),
    Column("INSTANCE", least=10),
    Column("vCPUs", right=True, drop=2),
    Column("MEM(GB)", right=True, drop=2),
    Column("GPUS", least=6),
    Column("MARKET"),
    Column("$/HR", right=True),
    Column("SAVED", right=True, drop=1),
)


def lines(plan: Plan, *, width: int | None, at_most: int) -> Iterator[str]:
    """The plan as text: a table of up to `at_most` offers for each task."""
    for task in plan["tasks"]:
        yield from _task_lines(task, width=width, at_most=at_most, is_one_of_many=len(plan["tasks"]) > 1)


def _task_lines(task: TaskPlan, *, width: int | None, at_most: int, is_one_of_many: bool) -> Iterator[str]:
    nodes = f"{task['num_nodes']} nodes; prices are for all of them" if task["num_nodes"] > 1 else "1 node"
    shown = task["offers"][:at_most]
    if not shown and task["total_offers"]:
        yield f"{task['total_offers']} offers fit, but each refused lately: the job waits until one can be had again."
        yield from (f"  Not now: {refusal}" for refusal in task["refused"])
        return
    yield f"Task {task['name']} ({nodes}):" if is_one_of_many else f"To be tried, in this order ({nodes}):"
    rows = [_row(number, offer, task["num_nodes"]) for number, offer in enumerate(shown, start=1)]
    yield from (f"  {line}" for line in table.render(COLUMNS, rows, width=width and width - 2))
    if task["total_offers"] > len(shown):
        yield f"  … and {task['total_offers'] - len(shown)} more"
    if task["saving"]:
        yield f"  The first saves {task['saving']:.0%} of the on-demand price."
    yield from (f"  Not now: {refusal}" for refusal in task["refused"])
    if strategy := task.get("strategy"):
        yield f"  Policy {strategy}: {task['why_strategy']}."
    if (forecast := task.get("forecast")) is not None:
        yield from (f"  {line}" for line in _foreseen(forecast))


def _foreseen(forecast: Forecast) -> Iterator[str]:
    cost, seconds = forecast["cost"], forecast["seconds"]
    if cost is None:
        yield f"No forecast: {forecast['why_not']}."
        return
    yield f"Expected cost {text.money(cost['mean'])} (8 times in 10: {_range(cost, text.money)})"
    if seconds is None:
        yield "Expected end: not to be told; too often it takes more than three times its work."
    else:
        yield f"Expected end in {text.duration(seconds['mean'])} (8 times in 10: {_range(seconds, text.duration)})"
    if forecast["late"] is not None:
        yield f"After its deadline: {forecast['late']:.0%} of {forecast['runs']} simulated runs"
    yield f"From {forecast['runs']} simulated runs, by {forecast['assumed']}."


def _range(spread: Spread, written: Callable[[float], str]) -> str:
    return f"{written(spread['low'])} to {written(spread['high'])}"


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
        text.saved(offer["price_per_hour"], offer["on_demand_price_per_hour"]) or "-",
    ]
