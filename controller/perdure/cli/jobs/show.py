"""`perdure jobs show` and `perdure jobs why`."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence

import click

from perdure.cli.completion import suggestions
from perdure.cli.jobs import timeline
from perdure.cli.output import durations, table, text
from perdure.cli.output.progress import spinner
from perdure.cli.output.table import Column
from perdure.recovery.statuses import AttemptState, NodePhase, Status
from perdure.sdk import logs
from perdure.sdk.connection import api_types

ATTEMPTS = (
    Column("#", right=True),
    Column("WHERE", min_width=16, keep_end=True),
    Column("INSTANCE", min_width=10, drop_rank=3),
    Column("$/HR", right=True, drop_rank=4),
    Column("REQUESTED"),
    Column("READY IN", right=True, drop_rank=2),
    Column("RAN", right=True),
    Column("COST", right=True, drop_rank=1),
    Column("STATE"),
    Column("REASON"),
    Column("NODES", drop_rank=5),
)
TIMELINE = (
    Column("ELAPSED", right=True),
    Column("TIME", drop_rank=2),
    Column("#"),
    Column("TASK"),
    Column("EVENT"),
    Column("WHERE", drop_rank=3),
    Column("DETAILS", min_width=40, wrap=True),
)


@click.command(
    epilog="""\b
Examples:
  perdure jobs show 7
  perdure jobs show 7 -o json | jq '.attempts[] | {zone, reason, cost_usd}'
  perdure jobs show 7 -o otlp            as a trace, for tools that read OpenTelemetry's
"""
)
@click.argument("job_id", type=int, metavar="ID", shell_complete=suggestions.job_ids)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json", "otlp"]),
    default="table",
    show_default=True,
    help="Output format; otlp is a trace of OpenTelemetry.",
)
def show(job_id: int, output: str) -> None:
    """Show what happened to a job: where each attempt ran and why it ended, and a timeline of all events.

    In the tables, # is the number of the attempt; 2.1 is node 1 of attempt 2. NODES has the rank of each machine, and
    its phase or the exit code of the job's command; lost means that the machine went first.
    """
    from perdure.cli.client import connect
    from perdure.sdk import jobs

    client = connect()
    with spinner("Loading the job"):
        job = jobs.get(job_id, client=client)
    if output == "json":
        click.echo(json.dumps(job, indent=2))
        return
    if output == "otlp":
        from perdure.sdk.notify.traces import job_trace

        click.echo(json.dumps(job_trace(job)))
        return
    for line in lines(job, width=table.screen_width(), now=text.to_epoch(job["now"])):
        click.echo(line)


@click.command(
    epilog="""\b
Examples:
  perdure jobs why 7
  perdure jobs why                       the newest job
"""
)
@click.argument("job_id", type=int, required=False, metavar="[ID]", shell_complete=suggestions.unfinished_job_ids)
@click.option(
    "-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Output format."
)
def why(job_id: int | None, output: str) -> None:
    """Say in one sentence what a job waits for, and since when."""
    from perdure.cli.client import connect
    from perdure.sdk import jobs

    client = connect()
    job = jobs.get(jobs.newest(client=client) if job_id is None else job_id, client=client)
    status, name = logs.status_of(job), text.one_line(job["name"])
    if output == "json":
        waits = {"waits_for": job["waits_for"], "waits_since": job["waits_since"]}
        return click.echo(json.dumps({"job_id": job["job_id"], "status": status.value, **waits}, indent=1))
    if not job["waits_for"]:
        return click.echo(f"Job {job['job_id']} ({name}) waits for nothing: it is {status.value}.")
    since = text.local_time(job["waits_since"] or job["submitted_at"], with_zone=True)
    click.echo(f"Job {job['job_id']} ({name}) is {status.value} since {since}: {text.one_line(job['waits_for'])}.")


def lines(job: api_types.JobDetail, *, width: int | None, now: float) -> Iterator[str]:
    """The lines of `perdure jobs show`."""
    tasks = job.get("tasks") or [job]
    seconds, zone = durations.of_tasks(tasks), text.time_zone(now)
    yield f"Job {job['job_id']} ({text.one_line(job['name'])}): {text.colored_status(logs.status_of(job).value)}"
    for task in tasks:
        if len(tasks) > 1:
            yield ""
            yield f"Task {task['task_index']} ({task['task_name'] or '-'}): {text.colored_status(task['status'])}"
        facts = _facts(task, seconds[task["task_index"]], now)
        yield from (f"  {name:<12} {text.one_line(value)}" for name, value in facts.items() if value)
        attempts = [attempt for attempt in job["attempts"] if attempt["task_index"] == task["task_index"]]
        if attempts:
            rows = [_attempt_row(attempt, now, timeline.refusal_code(attempt, job["timeline"])) for attempt in attempts]
            yield from ("", f"Attempts (times in {zone})", *table.render(ATTEMPTS, rows, width=width))
    if why_it_waits := job.get("waits_for"):  # an older controller does not say
        yield f"  {'waits for':<12} {text.one_line(why_it_waits)}"
    if job["timeline"]:
        began = text.to_epoch(job["submitted_at"])
        where = timeline.places(job["attempts"])
        rows = [timeline.row(entry, began, where) for entry in job["timeline"]]
        columns: Sequence[Column] = TIMELINE
        if len(tasks) == 1:
            columns = tuple(column for column in TIMELINE if column.title != "TASK")
            rows = [row[:3] + row[4:] for row in rows]
        yield from ("", f"Timeline (times in {zone})", *table.render(columns, rows, width=width))


def _facts(task: api_types.Job, total_s: float | None, now: float) -> Mapping[str, str]:
    share = text.saving(task["cost_usd"], task["on_demand_cost_usd"])
    cost = text.money(task["cost_usd"])
    at = text.local_time(task["submitted_at"], with_zone=True)
    submitted = f"{at} ({text.ago(task['submitted_at'], now)}) by {task['user']}"
    duration = f"{text.duration(total_s)}, of which {text.duration(task['job_duration_s'])} running"
    facts = {
        "reason": ": ".join(part for part in (task["reason"], task["message"]) if part),
        "exit code": "" if task["exit_code"] is None else str(task["exit_code"]),
        "where": text.where(task) if task["cloud"] else "",
        "resources": task["cluster_resources"] or task["resources"] or "-",
        "submitted": submitted,
        "duration": "" if total_s is None else duration,
        "recoveries": str(task["recovery_count"]),
        "restarts": str(task["restarts_on_errors"] or ""),
        "cost": f"{cost}; on-demand: {text.money(task['on_demand_cost_usd'])}, {share} saved" if share else cost,
        "task id": task["task_id"],
        "cleanup": task["cleanup"] or "",
    }
    if task["status"] == Status.SUCCEEDED:
        facts["reason"] = ""
    return facts


def _attempt_row(attempt: api_types.Attempt, now: float, refusal_code: str) -> list[str]:
    requested = text.to_epoch(attempt["requested_at"])
    running = text.to_epoch(attempt["running_at"]) if attempt["running_at"] else None
    ended = attempt["stopped_at"] or attempt["gone_at"]
    until = text.to_epoch(ended) if ended else now
    return [
        str(attempt["generation"]),
        text.where(attempt),
        attempt["instance_type"],
        text.money(attempt["price_per_hour"]),
        text.local_time(attempt["requested_at"])[11:],
        text.duration(None if running is None else running - requested),
        text.duration(None if running is None else until - running),
        text.money(attempt["cost_usd"]),
        attempt["state"],
        attempt["reason"] or refusal_code,
        " ".join(_node(node, attempt["state"]) for node in attempt["nodes"] if node["instance_id"]),
    ]


def _node(node: api_types.Node, attempt_state: str) -> str:
    """`0:running`, `0:ended=143`; `0:lost` if the machine went before the workload's end was reported."""
    if node["exit_code"] is not None:
        return f"{node['rank']}:{node['phase']}={node['exit_code']}"
    if node["connected"] or node["phase"] in (NodePhase.NOT_CONNECTED, NodePhase.ENDED):
        return f"{node['rank']}:{node['phase']}"
    return f"{node['rank']}:{'lost' if attempt_state == AttemptState.GONE else 'disconnected'}"
