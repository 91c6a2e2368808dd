"""Follows a job's logs on a terminal, with messages for a lost controller, Ctrl-C and the end of the job."""

from __future__ import annotations

import click

from perdure.cli.output import durations, text
from perdure.recovery.statuses import EXIT_NOT_FINISHED, Status
from perdure.sdk import jobs, logs
from perdure.sdk.connection import api_types
from perdure.sdk.connection.client import Client, ConnectionLost


def follow(
    client: Client, job_id: int, *, task: int | None = None, attempt: int | None = None, tail: int | None = None
) -> int:
    """Print a job's logs until it, or the attempt, ends; returns the job's exit code, or 101 when the user detaches
    with Ctrl-C."""
    try:
        code = jobs.tail_logs(job_id, task=task, attempt=attempt, tail=tail, on_lost=_report_lost, client=client)
    except KeyboardInterrupt:
        click.echo(
            f"\nDetached; job {job_id} keeps running.\n"
            f"  logs:    perdure jobs logs {job_id}\n"
            f"  cancel:  perdure jobs cancel {job_id}",
            err=True,
        )
        return EXIT_NOT_FINISHED
    if attempt is None or code != EXIT_NOT_FINISHED:
        click.echo(final_line(jobs.get(job_id, client=client), task), err=True)
    return code


def _report_lost(_: ConnectionLost) -> None:
    click.echo(
        "[perdure] The controller does not answer; waiting for it. Running jobs continue.\n"
        "           If it does not come back on its own: perdure controller start",
        err=True,
    )


def final_line(job: api_types.JobDetail, task: int | None) -> str:
    """The last message about a job: status, duration, cost, and the reason if it did not succeed."""
    parts = [part for part in job.get("tasks") or [job] if task is None or part["task_index"] == task]
    status = logs.status_of(job, task)
    recoveries = sum(part["recovery_count"] for part in parts)
    cost = text.cost(sum(part["cost_usd"] for part in parts), sum(part["on_demand_cost_usd"] for part in parts))
    all_tasks = job.get("tasks") or [job]
    seconds = durations.of_job(all_tasks) if task is None else durations.of_tasks(all_tasks)[task]
    facts = [text.duration(seconds)]
    if recoveries:
        facts.append(f"{recoveries} recover{'y' if recoveries == 1 else 'ies'}")
    if cost != "-":
        facts.append(cost.replace("(", "(saved "))
    line = f"Job {job['job_id']} ({text.one_line(job['name'])}) {text.colored_status(status.value)}: {', '.join(facts)}"
    if status is Status.SUCCEEDED:
        return line
    ended = next((part for part in parts if part["status"] == status), job)
    reason = text.one_line(ended.get("message") or ended.get("reason") or "")
    return f"{line}\n  {reason}\n  details: perdure jobs show {job['job_id']}" if reason else line
