"""`perdure jobs logs`."""

from __future__ import annotations

import time
from pathlib import Path

import click

from perdure.cli.completion import suggestions
from perdure.cli.errors import EXIT_WRONG_INPUT, Failure
from perdure.cli.jobs import timeline
from perdure.recovery.statuses import EXIT_NOT_FINISHED, EXIT_NOT_FOUND, exit_code
from perdure.sdk import jobs
from perdure.sdk import logs as job_logs
from perdure.sdk.connection import api_types
from perdure.sdk.connection.client import Client

TIMELINE_POLL_S = 1.0
attempt_option = click.option(
    "--attempt", type=click.IntRange(min=1), metavar="N", help="Show only the Nth attempt, which recoveries begin."
)


@click.command(
    epilog="""\b
Examples:
  perdure jobs logs                      the newest job, followed until it ends
  perdure jobs logs 7 --tail 100
  perdure jobs logs 7 eval               one task of a pipeline, by name or number
  perdure jobs logs 7 --attempt 2        one attempt; `perdure jobs show 7` lists them
  perdure jobs logs -n bert --no-follow > bert.log
  perdure jobs logs 7 --controller       what the controller did for the job, and why
  perdure jobs logs 7 --sync-down        to files in ~/perdure_logs

\b
Exit codes: 0 the job succeeded, 100 it failed, 101 it has not ended, 102 it or the attempt does not exist,
103 it was cancelled.
"""
)
@click.argument("job_id", type=int, required=False, metavar="[ID]", shell_complete=suggestions.job_ids)
@click.argument("task", required=False, metavar="[TASK]")
@click.option("-n", "--name", help="Show the newest job with this name.", shell_complete=suggestions.job_names)
@click.option("--follow/--no-follow", default=True, show_default=True, help="Follow the logs until the job ends.")
@attempt_option
@click.option("--controller", is_flag=True, help="Show controller events instead of job output.")
@click.option(
    "--tail", type=click.IntRange(min=0), default=0, metavar="N", help="Show only the last N lines; 0 shows all."
)
@click.option("-s", "--sync-down", is_flag=True, help="Download the logs so far to files in ~/perdure_logs.")
def logs(
    job_id: int | None,
    task: str | None,
    name: str | None,
    follow: bool,
    attempt: int | None,
    controller: bool,
    tail: int,
    sync_down: bool,
) -> None:
    """Show a job's logs from its first attempt on, and follow them until it ends.

    Following continues through recoveries and restarts of the controller. Ctrl-C leaves the job running.
    """
    from perdure.cli.client import connect
    from perdure.cli.jobs.follow import final_line
    from perdure.cli.jobs.follow import follow as follow_job

    if job_id is not None and name is not None:
        raise Failure("ID and --name exclude each other\n  use one of them", EXIT_WRONG_INPUT)
    if sync_down and (tail or task is not None or attempt is not None):
        fix = "it downloads the whole logs of all tasks; leave out TASK, --attempt and --tail"
        raise Failure(f"--sync-down excludes TASK, --attempt and --tail\n  {fix}", EXIT_WRONG_INPUT)
    if controller and attempt is not None:
        raise Failure("--controller and --attempt exclude each other\n  use one of them", EXIT_WRONG_INPUT)
    client = connect()
    selected_id = job_id if job_id is not None else jobs.newest(name, client=client)
    job = jobs.get(selected_id, client=client)
    if sync_down:
        click.echo(f"Logs of job {selected_id}: {_download(client, job, controller=controller)}")
        raise SystemExit(0)
    index = None if task is None else _task_index(job, task)
    if attempt is not None:
        require_attempt(job, attempt, index)
    if controller:
        code = follow_timeline(client, selected_id, follow=follow, tail=tail)
    elif follow:
        code = follow_job(client, selected_id, task=index, attempt=attempt, tail=tail or None)
    else:
        code = jobs.tail_logs(selected_id, task=index, attempt=attempt, follow=False, tail=tail or None, client=client)
        if not job["attempts"]:  # there is no log, and following it would say why
            click.echo(final_line(job, index), err=True)
    raise SystemExit(code)


def _download(client: Client, job: api_types.JobDetail, *, controller: bool) -> Path:
    """Write the logs, or with `controller` the timeline, to files; returns their folder. Raises `Failure`."""
    try:
        if not controller:
            return jobs.download_logs(job["job_id"], client=client)
        folder = jobs.download_folder(job)
        folder.mkdir(parents=True, exist_ok=True)
        where = timeline.places(job["attempts"])
        lines = (timeline.line(entry, where) for entry in job["timeline"])
        (folder / "controller.log").write_text("".join(f"{click.unstyle(line)}\n" for line in lines))
    except OSError as error:
        raise Failure(f"cannot write the logs: {error}\n  free space, or make the folder writable") from error
    return folder


def _task_index(job: api_types.JobDetail, task: str) -> int:
    tasks = job.get("tasks") or [job]
    for candidate in tasks:
        if task in (str(candidate["task_index"]), candidate["task_name"]):
            return candidate["task_index"]
    choices = ", ".join(f"{candidate['task_index']} ({candidate['task_name'] or '-'})" for candidate in tasks)
    raise Failure(f"job {job['job_id']} has no task {task!r}\n  choose from: {choices}", EXIT_WRONG_INPUT)


def require_attempt(job: api_types.JobDetail, attempt: int, task: int | None = None) -> None:
    """Raises `Failure` unless the job, or its task of this number, has the attempt."""
    known = sorted(one["generation"] for one in job["attempts"] if task in (None, one["task_index"]))
    if attempt not in known:
        what = f"it has had {known[-1]}" if known else "it has had none yet"
        raise Failure(f"job {job['job_id']} has no attempt {attempt}: {what}", EXIT_NOT_FOUND)


def follow_timeline(client: Client, job_id: int, *, follow: bool, tail: int) -> int:
    """Print the job's timeline, with `follow` until the job ends; returns its exit code, 101 if it has not ended."""
    printed = None
    try:
        while True:
            job = jobs.get(job_id, client=client)
            if printed is None:
                printed = max(0, len(job["timeline"]) - tail) if tail else 0
            where = timeline.places(job["attempts"])
            for entry in job["timeline"][printed:]:
                click.echo(timeline.line(entry, where))
            printed = len(job["timeline"])
            status = job_logs.status_of(job)
            if not follow or status.is_terminal:
                return exit_code(status)
            time.sleep(TIMELINE_POLL_S)
    except KeyboardInterrupt:
        return EXIT_NOT_FINISHED
