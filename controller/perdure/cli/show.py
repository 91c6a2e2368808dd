"""`perdure jobs show`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

import click

from perdure.cli import story, table, text
from perdure.cli.progress import working
from perdure.cli.table import Column
from perdure.recovery.statuses import Status
from perdure.sdk import logs, records

ATTEMPTS = (
    Column("#", right=True),
    Column("WHERE", least=16, keep_end=True),
    Column("INSTANCE", least=10, drop=3),
    Column("$/HR", right=True, drop=4),
    Column("ASKED FOR"),
    Column("READY IN", right=True, drop=2),
    Column("RAN", right=True),
    Column("COST", right=True, drop=1),
    Column("STATE"),
    Column("WHY"),
    Column("NODES", drop=5),
)
TIMELINE = (
    Column("SINCE", right=True),
    Column("AT", drop=2),
    Column("#"),
    Column("TASK"),
    Column("WHAT"),
    Column("WHERE", drop=3),
    Column("WHY", least=40, wrap=True),
)


@click.command(
    epilog="""\b
Examples:
  perdure jobs show 7
  perdure jobs show 7 -o json | jq '.attempts[] | {zone, reason, cost_usd}'
"""
)
@click.argument("job_id", type=int, metavar="ID")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def show(job_id: int, output: str) -> None:
    """What happened to a job: where its attempts ran, why each ended, and everything in order of time.

    In the tables, # is the attempt's number; 2.1 is node 1 of attempt 2.
    """
    from perdure.cli.connect import to_controller
    from perdure.sdk import jobs

    client = to_controller()
    with working("Reading the job"):
        job = jobs.get(job_id, client=client)
    if output == "json":
        click.echo(json.dumps(job, indent=2))
        return
    for line in lines(job, width=table.screen_width(), now=text.epoch(job["now"])):
        click.echo(line)


def lines(job: records.JobDetail, *, width: int | None, now: float) -> Iterator[str]:
    """The whole page about a job."""
    tasks = job.get("tasks") or [job]
    yield f"Job {job['job_id']} ({job['name']}): {text.painted_status(logs.status_of(job).value)}"
    for task in tasks:
        if len(tasks) > 1:
            yield ""
            yield f"Task {task['task_index']} ({task['task_name'] or '-'}): {text.painted_status(task['status'])}"
        yield from (f"  {name:<12} {value}" for name, value in _facts(task, now).items() if value)
        attempts = [one for one in job["attempts"] if one["task_index"] == task["task_index"]]
        if attempts:
            rows = [_attempt_row(one, now, story.refused(one, job["timeline"])) for one in attempts]
            yield from ("", "Attempts", *table.render(ATTEMPTS, rows, width=width))
    if job["timeline"]:
        began = text.epoch(job["submitted_at"])
        where = story.places(job["attempts"])
        rows = [story.row(entry, began, where) for entry in job["timeline"]]
        columns: Sequence[Column] = TIMELINE
        if len(tasks) == 1:
            columns = tuple(column for column in TIMELINE if column.title != "TASK")
            rows = [row[:3] + row[4:] for row in rows]
        yield from ("", "Timeline", *table.render(columns, rows, width=width))


def _facts(task: records.Job, now: float) -> Mapping[str, str]:
    share = text.saved(task["cost_usd"], task["on_demand_cost_usd"])
    cost = text.money(task["cost_usd"])
    submitted = f"{text.local_time(task['submitted_at'])} ({text.ago(task['submitted_at'], now)}) by {task['user']}"
    total, running = text.duration(task["total_duration_s"]), text.duration(task["job_duration_s"])
    facts = {
        "why": ": ".join(part for part in (task["reason"], task["message"]) if part),
        "exit code": "" if task["exit_code"] is None else str(task["exit_code"]),
        "where": text.where(task) if task["cloud"] else "",
        "resources": task["cluster_resources"] or task["resources"] or "-",
        "submitted": submitted,
        "duration": f"{total}, of which {running} running",
        "recoveries": str(task["recovery_count"]),
        "restarts": str(task["restarts_on_errors"] or ""),
        "cost": f"{cost}; on-demand: {text.money(task['on_demand_cost_usd'])}, {share} saved" if share else cost,
        "task id": task["task_id"],
        "cleanup": task["cleanup"] or "",
    }
    if task["status"] == Status.SUCCEEDED:
        facts["why"] = ""
    return facts


def _attempt_row(attempt: records.Attempt, now: float, refused: str) -> list[str]:
    asked = text.epoch(attempt["requested_at"])
    running = text.epoch(attempt["running_at"]) if attempt["running_at"] else None
    ended = attempt["stopped_at"] or attempt["gone_at"]
    until = text.epoch(ended) if ended else now
    return [
        str(attempt["generation"]),
        text.where(attempt),
        attempt["instance_type"],
        text.money(attempt["price_per_hour"]),
        text.local_time(attempt["requested_at"])[11:],
        text.duration(None if running is None else running - asked),
        text.duration(None if running is None else until - running),
        text.money(attempt["cost_usd"]),
        attempt["state"],
        attempt["reason"] or refused,
        " ".join(_node(node) for node in attempt["nodes"]),
    ]


def _node(node: records.Node) -> str:
    ended = "" if node["exit_code"] is None else f"={node['exit_code']}"
    return f"{node['rank']}:{node['phase']}{ended}" + ("" if node["connected"] or ended else "?")
