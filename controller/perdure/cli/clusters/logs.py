"""`perdure logs`."""

from __future__ import annotations

import click

from perdure.cli.completion import suggestions
from perdure.cli.errors import EXIT_WRONG_INPUT, Failure
from perdure.recovery.statuses import EXIT_CODES, EXIT_FAILED, EXIT_NOT_FINISHED, EXIT_NOT_FOUND


@click.command(
    epilog="""\b
Examples:
  perdure logs dev                       the newest job, followed until it ends
  perdure logs dev 3 --tail 100
  perdure logs dev 3 --no-follow > job.log
  perdure logs dev 3 --status            print the status; the exit code tells it, too
  perdure logs dev 3 4 --sync-down       to files in ~/perdure_logs

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
@click.option("--status", "only_status", is_flag=True, help="Print only the status of the job.")
@click.option("-s", "--sync-down", is_flag=True, help="Download the logs so far to files in ~/perdure_logs.")
def logs(cluster: str, numbers: tuple[int, ...], follow: bool, tail: int, only_status: bool, sync_down: bool) -> None:
    """Show the logs of a cluster's job, also after the cluster has ended. Ctrl-C leaves the job running."""
    from perdure.cli.client import connect
    from perdure.cli.clusters.follow import follow as follow_job
    from perdure.sdk import clusters, jobs

    client = connect()
    if sync_down:
        for number, folder in clusters.download_logs(cluster, numbers or None, client=client).items():
            click.echo(f"Logs of job {number}: {folder}")
        return
    if len(numbers) > 1:
        raise Failure(
            "the logs of one job at a time can be shown\n  to download several: --sync-down", EXIT_WRONG_INPUT
        )
    job = clusters.find_job(cluster, numbers[0] if numbers else None, client=client)
    if job is None:
        what = f"has no job {numbers[0]}" if numbers else "has no jobs yet"
        raise Failure(f"{cluster} {what}\n  see `perdure queue {cluster}`", EXIT_NOT_FOUND)
    if only_status:
        click.echo(f"Job {job['number']}: {job['status']}")
        raise SystemExit(exit_code(job["status"], has_ended=job["has_ended"]))
    if follow:
        raise SystemExit(follow_job(client, cluster, job["number"], job["job_id"], tail=tail or None))
    raise SystemExit(jobs.tail_logs(job["job_id"], follow=False, tail=tail or None, client=client))


def exit_code(status: str, *, has_ended: bool) -> int:
    """The exit code that stands for the status of a cluster's job."""
    if not has_ended:
        return EXIT_NOT_FINISHED
    return {str(known): code for known, code in EXIT_CODES.items()}.get(status, EXIT_FAILED)
