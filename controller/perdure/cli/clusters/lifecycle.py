"""`perdure stop`, `start`, `down`, `autostop` and `cancel`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import click

from perdure.cli.clusters.output import message_option, names_of, names_with_disks, print_clusters, print_json
from perdure.cli.completion import suggestions
from perdure.cli.errors import EXIT_WRONG_INPUT, Failure, warn
from perdure.cli.output.confirm import confirm, require_terminal_or_yes
from perdure.cli.output.progress import spinner
from perdure.recovery.statuses import EXIT_NOT_FOUND

if TYPE_CHECKING:
    from perdure.sdk.connection import api_types
    from perdure.sdk.connection.client import Client

Command = TypeVar("Command", bound=Callable[..., Any])

DEFAULT_IDLE_MINUTES = 5


wait_for_option = click.option(
    "--wait-for",
    type=click.Choice(["jobs_and_ssh", "jobs", "none"]),
    help="What keeps a cluster from being idle: jobs and sessions (the default), only jobs, or nothing.",
)


def _percent(_ctx: click.Context, _option: click.Parameter, text: str | None) -> float | None:
    if text is None:
        return None
    try:
        percent = float(text.removesuffix("%"))
    except ValueError:
        percent = 0.0
    if not 0 < percent <= 100:
        raise click.BadParameter(f"{text!r} is no percentage above 0, such as 5%")
    return percent


idle_below_option = click.option(
    "--idle-below",
    metavar="PERCENT",
    callback=_percent,
    help="Count jobs as idle, too, while no machine uses so much of its CPUs or of a GPU.",
)


@dataclass(frozen=True)
class Words:
    """What a command does, in its messages: `Stop`, `Stopping`, `stopped`."""

    verb: str
    doing: str
    done: str


def _named(command: Command) -> Command:
    """The arguments that the commands share."""
    for option in (
        message_option,
        click.option("-y", "--yes", is_flag=True, help="Skip confirmation."),
        click.option("--async/--no-async", "asynchronous", default=False, help="Return without waiting for the end."),
        click.option("-a", "--all", "everything", is_flag=True, help="All clusters."),
        click.option("-u", "--all-users", is_flag=True, hidden=True),
        click.argument("names", nargs=-1, metavar="[CLUSTERS]...", shell_complete=suggestions.clusters),
    ):
        command = option(command)
    return command


def _graceful(command: Command) -> Command:
    """SkyPilot's options, without which its clusters lose cached writes."""
    command = click.option("--graceful/--no-graceful", default=True, hidden=True)(command)
    return click.option("--graceful-timeout", type=click.IntRange(min=0), hidden=True)(command)


def _warn_of_timeout(graceful_timeout: int | None) -> None:
    if graceful_timeout is not None:
        warn(
            "--graceful-timeout has no effect\n  `timeouts.drain_timeout_s` of the controller's config.yaml is the time"
        )


@click.command(
    epilog="""\b
Examples:
  perdure stop dev
  perdure stop dev-1 'exp-*'
"""
)
@_named
@_graceful
def stop(
    names: tuple[str, ...],
    everything: bool,
    all_users: bool,
    asynchronous: bool,
    yes: bool,
    output: str,
    graceful: bool,  # noqa: ARG001 - it always is
    graceful_timeout: int | None,
) -> None:
    """Stop the machines of clusters; their queues stay.

    Jobs that run may save their work first, and start again after `perdure start`. On-demand machines keep their disks
    where the cloud can; others end, and the home folder is saved.
    """
    from perdure.sdk import clusters

    _warn_of_timeout(graceful_timeout)
    words = Words("Stop", "Stopping", "stopped")
    _each(names, everything or all_users, yes, asynchronous, words, clusters.stop, output)


@click.command(
    epilog="""\b
Examples:
  perdure down dev
  perdure down --all -y
"""
)
@_named
@_graceful
@click.option("-p", "--purge", is_flag=True, hidden=True)
def down(
    names: tuple[str, ...],
    everything: bool,
    all_users: bool,
    asynchronous: bool,
    yes: bool,
    output: str,
    graceful: bool,  # noqa: ARG001 - it always is
    graceful_timeout: int | None,
    purge: bool,  # noqa: ARG001 - termination is never given up
) -> None:
    """End clusters: their jobs are cancelled, and their machines end.

    Queue and logs stay readable by the cluster's name.
    """
    from perdure.sdk import clusters

    _warn_of_timeout(graceful_timeout)
    words = Words("End", "Ending", "terminated")
    _each(names, everything or all_users, yes, asynchronous, words, clusters.down, output)


@click.command(
    epilog="""\b
Examples:
  perdure start dev
  perdure start dev -i 30 --down        and end it once it was idle for half an hour
"""
)
@_named
@click.option(
    "-i", "--idle-minutes-to-autostop", "idle_minutes", type=float, metavar="MINUTES", help="Set autostop, too."
)
@click.option("--down", "is_down", is_flag=True, help="With -i: end the cluster instead of stopping it.")
@click.option("--discard-disks", is_flag=True, help="Launch other machines, and delete the disks that are kept.")
@wait_for_option
@idle_below_option
@click.option("-r", "--retry-until-up", is_flag=True, hidden=True)
@click.option("-f", "--force", is_flag=True, hidden=True)
def start(
    names: tuple[str, ...],
    everything: bool,
    all_users: bool,
    asynchronous: bool,
    yes: bool,
    output: str,
    idle_minutes: float | None,
    is_down: bool,
    discard_disks: bool,
    wait_for: Any,
    idle_below: float | None,
    retry_until_up: bool,  # noqa: ARG001 - a cluster waits for machines anyway
    force: bool,  # noqa: ARG001 - there is no runtime to restart
) -> None:
    """Start the machines of clusters that are stopped, or launch others. Jobs that wait then start."""
    from perdure.sdk import clusters

    if idle_minutes is None:
        refuse_without_autostop(wait_for, idle_below, "give -i, too")

    def begin(name: str, *, client: Any) -> Any:
        if idle_minutes is not None:
            clusters.autostop(name, idle_minutes, wait_for, is_down, idle_below=idle_below, client=client)
        return clusters.start(name, discard_disks=discard_disks, client=client)

    words, in_words = Words("Start", "Starting", "started"), names_with_disks if discard_disks else names_of
    _each(names, everything or all_users, yes, asynchronous, words, begin, output, in_words)


@click.command(
    epilog="""\b
Examples:
  perdure autostop dev -i 10             stop it once it was idle for 10 minutes
  perdure autostop dev -i 60 --down      end it instead
  perdure autostop dev -i 60 --wait-for jobs    even if somebody is logged in
  perdure autostop dev -i 60 --idle-below 5%    even if a job runs, but does nothing
  perdure autostop dev --cancel
"""
)
@click.argument("names", nargs=-1, metavar="[CLUSTERS]...", shell_complete=suggestions.clusters)
@click.option("-a", "--all", "everything", is_flag=True, help="All clusters.")
@click.option(
    "-i",
    "--idle-minutes",
    "idle_minutes",
    type=click.FloatRange(min=0),
    metavar="MINUTES",
    help=f"Stop a cluster once it was idle for so long; {DEFAULT_IDLE_MINUTES:g} by default.",
)
@click.option("--cancel", "is_cancelled", is_flag=True, help="Turn autostop off.")
@click.option("--down", "is_down", is_flag=True, help="End the cluster instead of stopping it.")
@wait_for_option
@idle_below_option
@click.option("-u", "--all-users", is_flag=True, hidden=True)
@click.option("--async/--no-async", "asynchronous", default=False, hidden=True)
@message_option
@click.option("-y", "--yes", is_flag=True, help="Skip confirmation.")
def autostop(
    names: tuple[str, ...],
    everything: bool,
    all_users: bool,
    asynchronous: bool,  # noqa: ARG001 - there is nothing to wait for
    idle_minutes: float | None,
    is_cancelled: bool,
    is_down: bool,
    wait_for: Any,
    idle_below: float | None,
    output: str,
    yes: bool,
) -> None:
    """Stop or end clusters by themselves once they were idle for some time.

    The setting stays over stop and start. Writes are uploaded before the machines end.
    """
    from perdure.cli.client import connect
    from perdure.cli.clusters.names import require
    from perdure.sdk import clusters

    if is_cancelled and (is_down or {idle_minutes, wait_for, idle_below} != {None}):
        raise Failure("--cancel excludes --idle-minutes, --wait-for, --idle-below and --down", EXIT_WRONG_INPUT)
    everything = everything or all_users
    client = connect()
    chosen = require(names, client, everything=everything)
    require_terminal_or_yes(yes=yes or not everything)
    minutes = -1.0 if is_cancelled else DEFAULT_IDLE_MINUTES if idle_minutes is None else idle_minutes
    for name in chosen:
        clusters.autostop(name, minutes, wait_for, is_down, idle_below=idle_below, client=client)
        if output == "text":
            click.echo(f"The cluster {name} {_autostop_text(minutes, is_down=is_down)}.")
    if output == "json":
        print_json(clusters.clusters(chosen, client=client))


@click.command(
    epilog="""\b
Examples:
  perdure cancel dev                     the newest job that runs
  perdure cancel dev 3 4
  perdure cancel dev --all
  perdure cancel 'exp-*' --all           of every cluster that matches
"""
)
@click.argument("cluster", shell_complete=suggestions.clusters)
@click.argument("numbers", type=click.IntRange(min=1), nargs=-1, metavar="[IDS]...")
@click.option("-a", "--all", "everything", is_flag=True, help="All unfinished jobs of the cluster.")
@click.option("-u", "--all-users", is_flag=True, hidden=True)
@click.option("--async/--no-async", "asynchronous", default=False, help="Return without waiting for the end.")
@message_option
@click.option("-y", "--yes", is_flag=True, help="Skip confirmation.")
def cancel(
    cluster: str,
    numbers: tuple[int, ...],
    everything: bool,
    all_users: bool,
    asynchronous: bool,
    output: str,
    yes: bool,
) -> None:
    """Cancel jobs of a cluster. They may save their work first."""
    from perdure.cli.client import connect
    from perdure.cli.clusters.names import is_pattern, require

    everything = everything or all_users
    if numbers and everything:
        raise Failure("IDS and --all exclude each other", EXIT_WRONG_INPUT)
    if numbers and is_pattern(cluster):
        raise Failure("IDS are those of one cluster\n  give its name, or leave the IDS out", EXIT_WRONG_INPUT)
    require_terminal_or_yes(yes=yes)
    client = connect()
    chosen = require([cluster], client, everything=False) if is_pattern(cluster) else [cluster]
    which = "all jobs" if everything else f"job {', '.join(map(str, numbers))}" if numbers else "the newest running job"
    _require_jobs(client, cluster, numbers)
    confirm(f"Cancel {which} of {', '.join(chosen)}?", yes=yes)
    documents = {
        name: _cancel(client, name, numbers, everything, asynchronous=asynchronous, quiet=output == "json")
        for name in chosen
    }
    if output == "json":
        print_json(documents)


def _require_jobs(client: Client, cluster: str, numbers: Sequence[int]) -> None:
    """Raises `Failure` unless the cluster has the jobs."""
    from perdure.sdk import clusters

    if not numbers:
        return
    known = {job["number"] for job in clusters.cluster_queue(cluster, numbers, client=client)["jobs"]}
    if unknown := [number for number in numbers if number not in known]:
        text = f"the cluster {cluster} has no job {', '.join(map(str, unknown))}"
        raise Failure(f"{text}\n  to list its jobs: perdure queue {cluster}", EXIT_NOT_FOUND)


def _cancel(
    client: Client, cluster: str, numbers: Sequence[int], everything: bool, *, asynchronous: bool, quiet: bool
) -> list[api_types.ClusterJob]:
    """Cancel jobs of one cluster; returns them. Says so, unless `quiet`."""
    from perdure.sdk import clusters

    result = clusters.get(clusters.cancel(cluster, everything, job_ids=numbers or None, client=client))
    if result["cancelled"] and not asynchronous:
        with spinner("Cancelling"):
            clusters.wait_ended(cluster, result["cancelled"], client=client)
    if quiet:
        about = [*result["cancelled"], *result["finished"]]
        return clusters.cluster_queue(cluster, about, client=client)["jobs"]
    if result["cancelled"]:
        click.echo(f"Cancelled job ID {', '.join(map(str, result['cancelled']))} of {cluster}.")
    if result["finished"]:
        click.echo(f"Job ID {', '.join(map(str, result['finished']))} of {cluster} has already finished.")
    if not any(result.values()):
        click.echo(f"No jobs to cancel on {cluster}.")
    if result["unknown"]:
        raise Failure(f"{cluster} has no job {', '.join(map(str, result['unknown']))}", EXIT_NOT_FOUND)
    return []


def _each(
    names: Sequence[str],
    everything: bool,
    yes: bool,
    asynchronous: bool,
    words: Words,
    call: Callable[..., Any],
    output: str,
    in_words: Callable[[Sequence[api_types.Cluster]], str] = names_of,
) -> None:
    """Do something to each of the clusters, and wait until it is done. `in_words`: the clusters, in the question."""
    from perdure.cli.client import connect
    from perdure.cli.clusters.names import require, update_ssh_hosts
    from perdure.sdk import clusters

    require_terminal_or_yes(yes=yes)
    client = connect()
    chosen = require(names, client, everything=everything)
    if not chosen:
        return print_json([]) if output == "json" else click.echo("No existing clusters.")
    before = clusters.clusters(chosen, client=client)
    ids = [one["cluster_id"] for one in before]
    confirm(f"{words.verb} {in_words(before)}?", yes=yes)
    requests = [(name, call(name, client=client)) for name in chosen]
    for name, request in requests:
        if not asynchronous:
            try:
                with spinner(f"{words.doing} {name}"):
                    clusters.get(request)
            except clusters.ClusterNotUp as error:
                raise Failure(str(error)) from error
        if output == "text":
            click.echo(f"Cluster {name} {'is being ' if asynchronous else ''}{words.done}.")
    update_ssh_hosts(client)
    if output == "json":
        print_clusters(client, ids)


def refuse_without_autostop(wait_for: str | None, idle_below: float | None, fix: str) -> None:
    """Raises `Failure` for options that say when a cluster is idle, of a command that sets no autostop."""
    given = {"--wait-for": wait_for, "--idle-below": idle_below}
    if name := next((name for name, value in given.items() if value is not None), None):
        raise Failure(f"{name} is an option of autostop\n  {fix}", EXIT_WRONG_INPUT)


def _autostop_text(minutes: float, *, is_down: bool) -> str:
    """What a cluster does by itself. `minutes`: how long it may be idle; below 0: for ever."""
    if minutes < 0:
        return "does not stop automatically"
    verb = "ends" if is_down else "stops"
    if not minutes:
        return f"{verb} as soon as it is idle"
    return f"{verb} automatically after {minutes:g} idle minute{'' if minutes == 1 else 's'}"
