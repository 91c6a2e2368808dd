"""`perdure serve down` and `perdure serve terminate-replica`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from perdure.cli.completion import suggestions
from perdure.cli.errors import EXIT_WRONG_INPUT, Failure
from perdure.cli.output.confirm import confirm, require_terminal_or_yes
from perdure.cli.output.progress import spinner

if TYPE_CHECKING:
    from perdure.sdk.connection.client import Client


@click.command(
    epilog="""\b
Examples:
  perdure serve down mymodel
  perdure serve down 'test-*'
  perdure serve down --all -y
  perdure serve down mymodel --replica-id 2     only this replica
"""
)
@click.argument("names", nargs=-1, metavar="[SERVICES]...", shell_complete=suggestions.services)
@click.option("-a", "--all", "everything", is_flag=True, help="All services.")
@click.option("--replica-id", type=click.IntRange(min=1), help="End one replica; another one takes its place.")
@click.option("--async/--no-async", "asynchronous", default=False, help="Return without waiting for the end.")
@click.option("-p", "--purge", is_flag=True, hidden=True)
@click.option("-y", "--yes", is_flag=True, help="Skip confirmation.")
def down(
    names: tuple[str, ...],
    everything: bool,
    replica_id: int | None,
    asynchronous: bool,
    purge: bool,  # noqa: ARG001 - termination is never given up
    yes: bool,
) -> None:
    """End services with all of their machines. The logs of their replicas stay readable."""
    from perdure.cli.client import connect
    from perdure.sdk import serve

    require_terminal_or_yes(yes=yes)
    client = connect()
    chosen = _chosen(names, client, everything=everything)
    if replica_id is not None:
        if len(chosen) != 1:
            raise Failure("--replica-id takes exactly one service", EXIT_WRONG_INPUT)
        return _terminate(chosen[0], replica_id, client, yes=yes)
    if not chosen:
        return click.echo("No live services.")
    confirm(f"End {', '.join(chosen)}?", yes=yes)
    for name in chosen:
        serve.down(name, wait=False, client=client)
    for name in chosen:
        if not asynchronous:
            with spinner(f"Ending {name}"):
                serve.down(name, client=client)
        click.echo(f"Service {name} {'is being ' if asynchronous else ''}terminated.")


@click.command(
    "terminate-replica",
    epilog="""\b
Examples:
  perdure serve terminate-replica mymodel 2
""",
)
@click.argument("name", shell_complete=suggestions.services)
@click.argument("replica_id", type=click.IntRange(min=1))
@click.option("-y", "--yes", is_flag=True, help="Skip confirmation.")
def terminate_replica(name: str, replica_id: int, yes: bool) -> None:
    """End one replica, once it has answered its requests. Another one takes its place if the service needs it."""
    from perdure.cli.client import connect

    require_terminal_or_yes(yes=yes)
    _terminate(name, replica_id, connect(), yes=yes)


def _terminate(name: str, replica_id: int, client: Client, *, yes: bool) -> None:
    from perdure.sdk import serve

    confirm(f"End replica {replica_id} of {name}?", yes=yes)
    serve.terminate_replica(name, replica_id, client=client)
    click.echo(f"Replica {replica_id} of {name} is being terminated.")


def _chosen(names: Sequence[str], client: Client, *, everything: bool) -> list[str]:
    """The names of existing services: those given, or all. Raises Failure."""
    from perdure.sdk import serve

    if bool(names) == everything:
        raise Failure("specify which services\n  use names, or --all", EXIT_WRONG_INPUT)
    existing = [one["name"] for one in serve.status(client=client)]
    if everything:
        return existing
    chosen: list[str] = []
    for name in names:
        is_pattern = bool(set(name) & set("*?["))
        chosen += [one["name"] for one in serve.status([name], client=client)] if is_pattern else [name]
    if unknown := [name for name in chosen if name not in existing]:
        raise Failure(f"Service {unknown[0]!r} does not exist\n  see `perdure serve status`")
    return list(dict.fromkeys(chosen))
