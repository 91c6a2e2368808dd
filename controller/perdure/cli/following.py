"""Following a job's log on a terminal: what is said when the controller is lost, at Ctrl-C, and at the end."""

from __future__ import annotations

import click

from perdure.cli import text
from perdure.recovery.statuses import EXIT_NOT_FINISHED, Status
from perdure.sdk import jobs, logs, records
from perdure.sdk.client import Client, ConnectionLost


def follow(client: Client, job_id: int, *, task: int | None = None, tail: int | None = None) -> int:
    """Show a job's log until it ends; returns its exit code, or 101 when the user detaches with Ctrl-C."""
    try:
        code = jobs.tail_logs(job_id, task=task, tail=tail, on_lost=_say_lost, client=client)
    except KeyboardInterrupt:
        click.echo(
            f"\nDetached; job {job_id} goes on.\n"
            f"  its log again:  perdure jobs logs {job_id}\n"
            f"  to end it:      perdure jobs cancel {job_id}",
            err=True,
        )
        return EXIT_NOT_FINISHED
    click.echo(_epitaph(jobs.get(job_id, client=client), task), err=True)
    return code


def _say_lost(_: ConnectionLost) -> None:
    click.echo(
        "[perdure] The controller does not answer; waiting for it. Jobs go on meanwhile.\n"
        "           If it is not coming back by itself: perdure controller start",
        err=True,
    )


def _epitaph(job: records.JobDetail, task: int | None) -> str:
    """One or two lines about how the job ended."""
    tasks = [one for one in job.get("tasks") or [job] if task is None or one["task_index"] == task]
    status = logs.status_of(job, task)
    recoveries = sum(one["recovery_count"] for one in tasks)
    paid = text.cost(sum(one["cost_usd"] for one in tasks), sum(one["on_demand_cost_usd"] for one in tasks))
    facts = [text.duration(sum(one["total_duration_s"] for one in tasks))]
    if recoveries:
        facts.append(f"{recoveries} recover{'y' if recoveries == 1 else 'ies'}")
    if paid != "-":
        facts.append(paid.replace("(", "(saved "))
    line = f"Job {job['job_id']} ({job['name']}) {text.painted_status(status.value)}: {', '.join(facts)}"
    if status is Status.SUCCEEDED:
        return line
    ended = next((one for one in tasks if one["status"] == status), job)
    why = ended.get("message") or ended.get("reason") or ""
    return f"{line}\n  {why}\n  what happened: perdure jobs show {job['job_id']}" if why else line
