"""`perdure jobs cancel`."""

from __future__ import annotations

import click

from perdure.cli.errors import EXIT_WRONG_INPUT, Failure
from perdure.cli.output.confirm import confirm
from perdure.cli.output.progress import spinner
from perdure.recovery.statuses import EXIT_NOT_FOUND
from perdure.sdk import jobs

LIST_ALL = "list all jobs: perdure jobs queue --all"
_MIN_RANGE = 3  # consecutive ids that are written as a range


@click.command(
    epilog="""\b
Examples:
  perdure jobs cancel 3 4
  perdure jobs cancel -n bert --graceful-timeout 300
  perdure jobs cancel 3 --no-graceful    at once; unsaved work is lost
  perdure jobs cancel --all -y
"""
)
@click.argument("job_ids", type=int, nargs=-1, metavar="[IDS]...")
@click.option("-n", "--name", help="Cancel all jobs with this name.")
@click.option("-a", "--all", "everything", is_flag=True, help="Cancel all unfinished jobs.")
@click.option(
    "--graceful/--no-graceful",
    default=True,
    show_default=True,
    help="Let the job save its work and upload cached writes first.",
)
@click.option(
    "--graceful-timeout",
    type=click.IntRange(min=0),
    metavar="SECONDS",
    help="Maximum time for a graceful cancellation.",
)
@click.option("-y", "--yes", is_flag=True, help="Skip confirmation.")
def cancel(
    job_ids: tuple[int, ...],
    name: str | None,
    everything: bool,
    graceful: bool,
    graceful_timeout: int | None,
    yes: bool,
) -> None:
    """Cancel jobs and release their machines."""
    if [bool(job_ids), name is not None, everything].count(True) != 1:
        raise Failure("specify which jobs to cancel\n  use exactly one of IDs, --name and --all", EXIT_WRONG_INPUT)
    which = "all jobs" if everything else f"all jobs named {name}" if name else _named(list(job_ids))
    confirm(f"Cancel {which}?", yes=yes, default=not everything)
    from perdure.cli.client import connect

    client = connect()
    with spinner("Cancelling"):
        result = jobs.cancel(
            job_ids or None,
            name=name,
            all=everything,
            graceful=graceful,
            grace_s=graceful_timeout,
            client=client,
        )
    if cancelled := result["cancelled"]:
        subject = f"Job with ID {cancelled[0]} is" if len(cancelled) == 1 else f"Jobs with IDs {_listed(cancelled)} are"
        click.echo(f"{subject} scheduled to be cancelled.")
    elif not result["unknown"] and not result["finished"]:
        if name is not None:
            raise Failure(f"there is no job named {name!r}\n  {LIST_ALL}", EXIT_NOT_FOUND)
        click.echo("No jobs to cancel.")
    if result["finished"]:
        verb = "has" if len(result["finished"]) == 1 else "have"
        click.echo(f"{_named(result['finished']).capitalize()} {verb} already finished.")
    if result["unknown"]:
        verb = "is" if len(result["unknown"]) == 1 else "are"
        raise Failure(f"there {verb} no {_named(result['unknown'])}\n  {LIST_ALL}", EXIT_NOT_FOUND)


def _named(ids: list[int]) -> str:
    return f"job {ids[0]}" if len(ids) == 1 else f"jobs {_listed(ids)}"


def _listed(ids: list[int]) -> str:
    """`1, 3, 7-12`."""
    runs: list[list[int]] = []
    for id in sorted(ids):
        if runs and id == runs[-1][-1] + 1:
            runs[-1].append(id)
        else:
            runs.append([id])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) >= _MIN_RANGE else ", ".join(map(str, run)) for run in runs)
