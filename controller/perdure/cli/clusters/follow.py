"""Follows the logs of a cluster's job, with messages for Ctrl-C and for the end of the job."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from perdure.cli.output import text
from perdure.recovery.statuses import EXIT_NOT_FINISHED

if TYPE_CHECKING:
    from perdure.sdk.connection.client import Client


def follow(
    client: Client, cluster: str, number: int, job_id: int, *, attempt: int | None = None, tail: int | None = None
) -> int:
    """Print the logs of a job until it, or the attempt, ends; returns the job's exit code, or 101 when the user
    detaches with Ctrl-C."""
    from perdure.sdk import clusters, jobs

    try:
        code = jobs.tail_logs(job_id, attempt=attempt, tail=tail, client=client)
    except KeyboardInterrupt:
        click.echo(
            f"\nDetached; job {number} keeps running on {cluster}.\n"
            f"  logs:    perdure logs {cluster} {number}\n"
            f"  cancel:  perdure cancel {cluster} {number}",
            err=True,
        )
        return EXIT_NOT_FINISHED
    job = clusters.find_job(cluster, number, client=client)
    if job is not None and (attempt is None or code != EXIT_NOT_FINISHED):
        status = text.colored_status(job["status"])
        line = f"Job {number} on {cluster} ({text.one_line(job['name'])}) {status}: {text.duration(job['duration_s'])}"
        reason = "" if job["status"] == "SUCCEEDED" else text.one_line(job["message"])
        click.echo(f"{line}\n  {reason}" if reason else line, err=True)
    return code
