"""`perdure jobs cancel`."""

from __future__ import annotations

from collections.abc import Mapping

import click

from perdure.cli.clusters.output import message_option, print_json
from perdure.cli.completion import suggestions
from perdure.cli.errors import EXIT_WRONG_INPUT, Failure, warn
from perdure.cli.output.confirm import confirm, require_terminal_or_yes
from perdure.cli.output.progress import spinner
from perdure.recovery.statuses import EXIT_NOT_FOUND
from perdure.sdk import jobs
from perdure.sdk.connection.api_types import Cancelled
from perdure.sdk.connection.users import Ownership, ownership

LIST_ALL = "list all jobs: perdure jobs queue --all"
_MAX_NAMED = 20  # ids in a suggested command
_MIN_RANGE = 3  # consecutive ids that are written as a range


@click.command(
    epilog="""\b
Examples:
  perdure jobs cancel 3 4
  perdure jobs cancel -n bert --graceful-timeout 300
  perdure jobs cancel -n 'sweep-*'       quote the pattern to protect it from the shell
  perdure jobs cancel 3 --no-graceful    at once; unsaved work is lost
  perdure jobs cancel --all -y           all jobs of yours
"""
)
@click.argument("job_ids", type=int, nargs=-1, metavar="[IDS]...", shell_complete=suggestions.unfinished_job_ids)
@click.option(
    "-n",
    "--name",
    help="Cancel all jobs with this name; *, ? and [a-z] are wildcards.",
    shell_complete=suggestions.job_names,
)
@click.option("-a", "--all", "everything", is_flag=True, help="Cancel all unfinished jobs of yours.")
@click.option("-u", "--all-users", is_flag=True, help="Cancel the unfinished jobs of all users.")
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
@message_option
@click.option("-y", "--yes", is_flag=True, help="Skip confirmation.")
def cancel(
    job_ids: tuple[int, ...],
    name: str | None,
    everything: bool,
    all_users: bool,
    graceful: bool,
    graceful_timeout: int | None,
    output: str,
    yes: bool,
) -> None:
    """Cancel jobs and release their machines."""
    if [bool(job_ids), name is not None, everything or all_users].count(True) != 1:
        fix = "use exactly one of IDs, --name, --all and --all-users"
        raise Failure(f"specify which jobs to cancel\n  {fix}", EXIT_WRONG_INPUT)
    if name == "":
        raise Failure(f"--name: the name is empty\n  {LIST_ALL}", EXIT_WRONG_INPUT)
    require_terminal_or_yes(yes=yes)
    from perdure.cli.client import connect

    client = connect()
    ids = list(job_ids)
    left: dict[int, str] = {}
    if ids:
        which = _named(ids)
    else:
        with spinner("Finding jobs"):
            own = None if all_users or name is not None else ownership(client)
            unfinished = jobs.unfinished(name=name, client=client)
        ids = [id for id, user in unfinished.items() if own is None or user in own.names]
        left = {id: user for id, user in unfinished.items() if own is not None and own.is_left_over(user)}
        if not ids:
            _report_none(name, own, as_json=output == "json")
            return _report_left(left)
        users = list(dict.fromkeys(unfinished[id] for id in ids))
        whose = f"named {name}" if name is not None else "of all users" if own is None else f"of {' and '.join(users)}"
        which = f"{len(ids)} job{'s' if len(ids) > 1 else ''} {whose}"
    confirm(f"Cancel {which}?", yes=yes, default=not everything and not all_users)
    with spinner("Cancelling"):
        result = jobs.cancel(ids, graceful=graceful, grace_s=graceful_timeout, client=client)
    if output == "json":
        print_json(result)
    else:
        _report(result)
    _report_left(left)
    if result["unknown"]:
        verb = "is" if len(result["unknown"]) == 1 else "are"
        raise Failure(f"there {verb} no {_named(result['unknown'])}\n  {LIST_ALL}", EXIT_NOT_FOUND)


def _report(result: Cancelled) -> None:
    if cancelled := result["cancelled"]:
        subject = f"Job with ID {cancelled[0]} is" if len(cancelled) == 1 else f"Jobs with IDs {_listed(cancelled)} are"
        click.echo(f"{subject} scheduled to be cancelled.")
    if result["finished"]:
        verb = "has" if len(result["finished"]) == 1 else "have"
        click.echo(f"{_named(result['finished']).capitalize()} {verb} already finished.")


def _report_left(left: Mapping[int, str]) -> None:
    """Warn of the jobs from before named users that still run: they are nobody's, so nobody else looks after them."""
    if left:
        verb = "is" if len(left) == 1 else "are"
        users = " and ".join(sorted(set(left.values())))
        them = " ".join(map(str, sorted(left))) if len(left) <= _MAX_NAMED else "--all-users"
        warn(
            f"{_named(list(left))} of {users} {verb} left, launched before there were named users; "
            f"to cancel {'it' if len(left) == 1 else 'them'}: perdure jobs cancel {them}"
        )


def _report_none(name: str | None, own: Ownership | None, *, as_json: bool) -> None:
    """Say that there is nothing to cancel. Raises `Failure` if the user has named jobs."""
    if name is not None:
        raise Failure(f"there is no unfinished job named {name!r}\n  {LIST_ALL}", EXIT_NOT_FOUND)
    if as_json:
        return print_json({"cancelled": [], "finished": [], "unknown": []})
    hint = "" if own is None else f" of {' and '.join(own.names)}; --all-users cancels those of others, too"
    click.echo(f"No jobs to cancel{hint}.")


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
