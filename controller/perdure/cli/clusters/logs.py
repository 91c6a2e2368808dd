"""`perdure logs`."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import click

from perdure.cli.clusters.output import message_option, print_json
from perdure.cli.completion import suggestions
from perdure.cli.errors import EXIT_WRONG_INPUT, Failure
from perdure.cli.jobs.logs import attempt_option
from perdure.recovery.statuses import EXIT_CODES, EXIT_FAILED, EXIT_NOT_FINISHED, EXIT_NOT_FOUND

if TYPE_CHECKING:
    from perdure.sdk.connection import api_types
    from perdure.sdk.connection.client import Client


@click.command(
    epilog="""\b
Examples:
  perdure logs dev                       the newest job, followed until it ends
  perdure logs dev 3 --tail 100
  perdure logs dev 3 --no-follow > job.log
  perdure logs dev 3 --attempt 1         before the cluster was stopped or preempted
  perdure logs dev 3 --status            print the status; the exit code tells it, too
  perdure logs dev 3 4 --sync-down       to files in ~/perdure_logs
  perdure logs dev --provision           how its machines were launched, and what became of them

\b
Exit codes: 0 the job succeeded, 100 it failed, 101 it has not ended, 102 it does not exist,
103 it was cancelled.
"""
)
@click.argument("cluster", shell_complete=suggestions.clusters)
@click.argument("numbers", type=click.IntRange(min=1), nargs=-1, metavar="[IDS]...")
@click.option("--follow/--no-follow", default=True, show_default=True, help="Follow the logs until the job ends.")
@click.option(
    "--tail", type=click.IntRange(min=0), default=0, metavar="N", help="Show only the last N lines; 0 shows all."
)
@attempt_option
@click.option("--status", "only_status", is_flag=True, help="Print only the status of the job.")
@click.option("-s", "--sync-down", is_flag=True, help="Download the logs so far to files in ~/perdure_logs.")
@click.option("--provision", is_flag=True, help="Show the events of the cluster's machines instead of a job's output.")
@click.option("-w", "--worker", type=int, hidden=True)
@message_option
def logs(
    cluster: str,
    numbers: tuple[int, ...],
    follow: bool,
    tail: int,
    attempt: int | None,
    only_status: bool,
    sync_down: bool,
    provision: bool,
    worker: int | None,  # noqa: ARG001 - the events of all machines are one list
    output: str,
) -> None:
    """Show the logs of a cluster's job, also after the cluster has ended. Ctrl-C leaves the job running.

    With -o json it prints one document, and does not follow.
    """
    from perdure.cli.client import connect
    from perdure.cli.clusters.follow import follow as follow_job
    from perdure.sdk import clusters, jobs

    client = connect()
    if provision:
        return _print_provision(client, cluster, follow=follow, tail=tail)
    if sync_down:
        folders = clusters.download_logs(cluster, numbers or None, client=client)
        if output == "json":
            return print_json(folders)
        for number, folder in folders.items():
            click.echo(f"Logs of job {number}: {folder}")
        return None
    if len(numbers) > 1:
        raise Failure(
            "the logs of one job at a time can be shown\n  to download several: --sync-down", EXIT_WRONG_INPUT
        )
    job = clusters.find_job(cluster, numbers[0] if numbers else None, client=client)
    if job is None:
        what = f"has no job {numbers[0]}" if numbers else "has no jobs yet"
        raise Failure(f"{cluster} {what}\n  see `perdure queue {cluster}`", EXIT_NOT_FOUND)
    if attempt is not None:
        from perdure.cli.jobs.logs import require_attempt

        require_attempt(jobs.get(job["job_id"], client=client), attempt)
    if output == "json":
        return _print_document(client, job, attempt, tail, with_log=not only_status)
    if only_status:
        click.echo(f"Job {job['number']}: {job['status']}")
        raise SystemExit(exit_code(job["status"], has_ended=job["has_ended"]))
    if follow:
        number, job_id = job["number"], job["job_id"]
        raise SystemExit(follow_job(client, cluster, number, job_id, attempt=attempt, tail=tail or None))
    raise SystemExit(jobs.tail_logs(job["job_id"], attempt=attempt, follow=False, tail=tail or None, client=client))


def _print_document(
    client: Client, job: api_types.ClusterJob, attempt: int | None, tail: int, *, with_log: bool
) -> None:
    """The document of `-o json`. Its exit code is that of the job."""
    from perdure.sdk import jobs

    text = None
    if with_log:
        written = io.BytesIO()
        jobs.tail_logs(
            job["job_id"], attempt=attempt, follow=False, tail=tail or None, output_stream=written, client=client
        )
        text = written.getvalue().decode(errors="replace")
    print_json({"job": job, "log": text})
    raise SystemExit(exit_code(job["status"], has_ended=job["has_ended"]))


def _print_provision(client: Client, cluster: str, *, follow: bool, tail: int) -> None:
    from perdure.cli.jobs.logs import follow_timeline
    from perdure.sdk import clusters

    host = clusters.cluster_queue(cluster, [], client=client)["cluster"]["host_job_id"]
    if host is None:
        raise Failure(f"no machines of {cluster} have been requested yet\n  see `perdure status {cluster}`")
    follow_timeline(client, host, follow=follow, tail=tail)


def exit_code(status: str, *, has_ended: bool) -> int:
    """The exit code that stands for the status of a cluster's job."""
    if not has_ended:
        return EXIT_NOT_FINISHED
    return {str(known): code for known, code in EXIT_CODES.items()}.get(status, EXIT_FAILED)
