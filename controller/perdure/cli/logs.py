"""`perdure jobs logs`."""

from __future__ import annotations

import time

import click

from perdure.cli import story
from perdure.cli.errors import EXIT_WRONG_INPUT, Failure
from perdure.recovery.statuses import EXIT_NOT_FINISHED, exit_code
from perdure.sdk import jobs, records
from perdure.sdk import logs as following
from perdure.sdk.client import Client

STORY_POLL_S = 1.0


@click.command(
    epilog="""\b
Examples:
  perdure jobs logs                      the newest job, followed to its end
  perdure jobs logs 7 --tail 100
  perdure jobs logs 7 eval               one task of a pipeline, by name or number
  perdure jobs logs -n bert --no-follow > bert.log
  perdure jobs logs 7 --controller       what the controller did about the job, and why

\b
Exit codes: 0 the job succeeded, 100 it failed, 101 it has not ended, 102 there is no such job,
103 it was cancelled.
"""
)
@click.argument("job_id", type=int, required=False, metavar="[ID]")
@click.argument("task", required=False, metavar="[TASK]")
@click.option("-n", "--name", help="The newest job of this name.")
@click.option("--follow/--no-follow", default=True, show_default=True, help="Go on until the job ends.")
@click.option("--controller", is_flag=True, help="The controller's story of the job instead of its output.")
@click.option("--tail", type=click.IntRange(min=0), default=0, metavar="N", help="Only the last N lines; 0 for all.")
def logs(job_id: int | None, task: str | None, name: str | None, follow: bool, controller: bool, tail: int) -> None:
    """Show what a job printed, from its first attempt on, and go on until it ends.

    Recoveries, and a controller that is started anew, do not break it; Ctrl-C leaves the job running.
    """
    from perdure.cli.connect import to_controller
    from perdure.cli.following import follow as follow_job

    if job_id is not None and name is not None:
        raise Failure("both an ID and a name were given\n  give one of them", EXIT_WRONG_INPUT)
    client = to_controller()
    chosen = job_id if job_id is not None else jobs.newest(name, client=client)
    job = jobs.get(chosen, client=client)
    index = None if task is None else _task_index(job, task)
    if controller:
        code = _tell(client, chosen, follow=follow, tail=tail)
    elif follow:
        code = follow_job(client, chosen, task=index, tail=tail or None)
    else:
        code = jobs.tail_logs(chosen, task=index, follow=False, tail=tail or None, client=client)
    raise SystemExit(code)


def _task_index(job: records.JobDetail, task: str) -> int:
    tasks = job.get("tasks") or [job]
    for one in tasks:
        if task in (str(one["task_index"]), one["task_name"]):
            return one["task_index"]
    there_are = ", ".join(f"{one['task_index']} ({one['task_name'] or '-'})" for one in tasks)
    raise Failure(f"job {job['job_id']} has no task {task!r}\n  it has: {there_are}", EXIT_WRONG_INPUT)


def _tell(client: Client, job_id: int, *, follow: bool, tail: int) -> int:
    """Print the job's timeline as it grows; returns the job's exit code."""
    told = None
    try:
        while True:
            job = jobs.get(job_id, client=client)
            if told is None:
                told = max(0, len(job["timeline"]) - tail) if tail else 0
            where = story.places(job["attempts"])
            for entry in job["timeline"][told:]:
                click.echo(story.line(entry, where))
            told = len(job["timeline"])
            status = following.status_of(job)
            if not follow or status.is_terminal:
                return exit_code(status)
            time.sleep(STORY_POLL_S)
    except KeyboardInterrupt:
        return EXIT_NOT_FINISHED
