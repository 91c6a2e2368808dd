"""`perdure serve logs`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from perdure.cli.completion import suggestions
from perdure.cli.errors import EXIT_WRONG_INPUT, Failure
from perdure.cli.output import text
from perdure.recovery.statuses import EXIT_NOT_FINISHED, EXIT_NOT_FOUND
from perdure.sdk.serve import types

if TYPE_CHECKING:
    from perdure.sdk.connection.client import Client


@click.command(
    epilog="""\b
Examples:
  perdure serve logs mymodel 1               a replica, followed until it ends
  perdure serve logs mymodel 1 --no-follow --tail 100
  perdure serve logs mymodel --load-balancer the requests that the proxy has answered
  perdure serve logs mymodel --controller    what was decided, and what has happened
  perdure serve logs mymodel --sync-down     all of them, to files in ~/perdure_logs
  perdure serve logs mymodel 1 2 --sync-down
"""
)
@click.argument("name", shell_complete=suggestions.services)
@click.argument("replica_ids", type=click.IntRange(min=1), nargs=-1, metavar="[REPLICA_ID]...")
@click.option("--follow/--no-follow", default=True, show_default=True, help="Follow the log until the replica ends.")
@click.option("--tail", type=click.IntRange(min=0), default=0, metavar="N", help="Show only the last N lines.")
@click.option("--load-balancer", is_flag=True, help="Show the log of the proxy: it has no headers and no queries.")
@click.option("--controller", is_flag=True, help="Show what has happened to the service, and what was decided.")
@click.option("-s", "--sync-down", is_flag=True, help="Download the logs so far to files in ~/perdure_logs.")
def logs(
    name: str,
    replica_ids: tuple[int, ...],
    follow: bool,
    tail: int,
    load_balancer: bool,
    controller: bool,
    sync_down: bool,
) -> None:
    """Show the log of a replica, also after it has ended. Ctrl-C leaves it running."""
    from perdure.cli.client import connect
    from perdure.sdk import serve

    if sync_down:
        if load_balancer or controller or tail:
            fix = "it downloads whole logs; leave out --load-balancer, --controller and --tail"
            raise Failure(f"--sync-down excludes other options\n  {fix}", EXIT_WRONG_INPUT)
        return click.echo(f"Logs of {name}: {_download(connect(), name, replica_ids)}")
    if len(replica_ids) + load_balancer + controller != 1:
        fix = "several replicas can be downloaded: --sync-down"
        raise Failure(f"give the number of one replica, --load-balancer or --controller\n  {fix}", EXIT_WRONG_INPUT)
    client = connect()
    if controller:
        for entry in serve.timeline(name, limit=tail or None, client=client):
            click.echo(_line(entry))
        return None
    if not replica_ids:
        return click.echo(serve.proxy_log(name, tail=tail or None, client=client), nl=False)
    (replica_id,) = replica_ids
    if (reason := _no_machine(serve.get(name, all_replicas=True, client=client), replica_id)) is not None:
        return click.echo(f"Replica {replica_id} of {name} had no machine{reason and ': '}{reason}", err=True)
    try:
        code = serve.tail_logs(name, replica_id, follow=follow, tail=tail or None, client=client)
    except KeyboardInterrupt:
        click.echo(f"\nDetached; replica {replica_id} of {name} keeps running.", err=True)
        raise SystemExit(EXIT_NOT_FINISHED) from None
    if code == EXIT_NOT_FOUND:
        raise Failure(f"{name} has no log of a replica {replica_id}\n  see `perdure serve status {name} -a`", code)
    raise SystemExit(code)


def _download(client: Client, name: str, replica_ids: tuple[int, ...]) -> Path:
    """Write logs to files, of all replicas with the service's own; returns their folder. Raises `Failure`."""
    from perdure.sdk import serve
    from perdure.sdk.files.downloads import replacing

    try:
        folder = serve.download_logs(name, replica_ids or None, client=client)
        if not replica_ids:
            lines = list(map(_line, serve.timeline(name, limit=types.MAX_TIMELINE_ENTRIES, client=client)))
            if len(lines) >= types.MAX_TIMELINE_ENTRIES:
                lines.insert(0, f"# The last {types.MAX_TIMELINE_ENTRIES} entries: earlier ones are not kept.")
            with replacing(folder / "controller.log") as file:
                file.write("".join(f"{line}\n" for line in lines).encode())
    except serve.ReplicaNotFound as error:
        raise Failure(f"{error}\n  see `perdure serve status {name} -a`", EXIT_NOT_FOUND) from error
    except OSError as error:
        raise Failure(f"cannot write the logs: {error}\n  free space, or make the folder writable") from error
    return folder


def _no_machine(service: types.Service, number: int) -> str | None:
    """Why a replica that is over never had a machine, and so has no log; None if it had one."""
    for one in service["replicas"]:
        if one["number"] == number and one["ended_at"] is not None:
            return one["message"] if one["status"] == "FAILED_PROVISION" or one["infra"] == "-" else None
    return None


def _line(entry: types.ServiceTimelineEntry) -> str:
    """An entry of the timeline."""
    of = [f"version {entry['version']}"] if entry["version"] is not None else []
    of += [f"replica {entry['replica']}"] if entry["replica"] is not None else []
    words = [text.local_time(entry["at"]), entry["kind"].removeprefix("service."), *of]
    return "  ".join(words) + (f": {text.one_line(entry['message'])}" if entry["message"] else "")
