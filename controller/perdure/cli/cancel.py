"""`perdure jobs cancel`."""

from __future__ import annotations

import click

from perdure.cli.confirm import ask
from perdure.cli.errors import EXIT_WRONG_INPUT, Failure
from perdure.cli.progress import working
from perdure.recovery.statuses import EXIT_NOT_FOUND
from perdure.sdk import jobs

_RUN = 2  # ids in a row that are still written one by one


@click.command(
    epilog="""\b
Examples:
  perdure jobs cancel 3 4
  perdure jobs cancel -n bert --graceful-timeout 300
  perdure jobs cancel 3 --no-graceful    at once; what was not saved is lost
  perdure jobs cancel --all -y
"""
)
@click.argument("job_ids", type=int, nargs=-1, metavar="[IDS]...")
@click.option("-n", "--name", help="Every job of this name.")
@click.option("-a", "--all", "everything", is_flag=True, help="Every job that has not ended.")
@click.option(
    "--graceful/--no-graceful",
    default=True,
    show_default=True,
    help="Let the job save its work, and cached writes reach their bucket.",
)
@click.option("--graceful-timeout", type=click.IntRange(min=0), metavar="S", help="For at most so many seconds.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def cancel(
    job_ids: tuple[int, ...],
    name: str | None,
    everything: bool,
    graceful: bool,
    graceful_timeout: int | None,
    yes: bool,
) -> None:
    """End jobs and give their machines back."""
    if [bool(job_ids), name is not None, everything].count(True) != 1:
        raise Failure("say which jobs: by IDs, by --name, or --all", EXIT_WRONG_INPUT)
    which = "all jobs" if everything else f"every job named {name}" if name else _named(list(job_ids))
    ask(f"Cancel {which}?", yes=yes)
    from perdure.cli.connect import to_controller

    client = to_controller()
    with working("Cancelling"):
        answer = jobs.cancel(
            job_ids or None,
            name=name,
            all=everything,
            graceful=graceful,
            grace_s=graceful_timeout,
            client=client,
        )
    if chosen := answer["cancelled"]:
        subject = f"Job with ID {chosen[0]} is" if len(chosen) == 1 else f"Jobs with IDs {_listed(chosen)} are"
        click.echo(f"{subject} scheduled to be cancelled.")
    elif not answer["unknown"] and not answer["finished"]:
        click.echo("There is nothing to cancel.")
    if answer["finished"]:
        verb = "has" if len(answer["finished"]) == 1 else "have"
        click.echo(f"{_named(answer['finished']).capitalize()} {verb} already ended.")
    if answer["unknown"]:
        raise Failure(f"there is no {_named(answer['unknown'])}\n  see: perdure jobs queue", EXIT_NOT_FOUND)


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
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > _RUN else ", ".join(map(str, run)) for run in runs)
