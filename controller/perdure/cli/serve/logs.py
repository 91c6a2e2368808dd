"""`perdure serve logs`."""

from __future__ import annotations

import click

from perdure.cli.completion import suggestions
from perdure.cli.errors import EXIT_WRONG_INPUT, Failure
from perdure.cli.output import text
from perdure.recovery.statuses import EXIT_NOT_FINISHED, EXIT_NOT_FOUND
from perdure.sdk.serve import types


@click.command(
    epilog="""\b
Examples:
  perdure serve logs mymodel 1               a replica, followed until it ends
  perdure serve logs mymodel 1 --no-follow --tail 100
  perdure serve logs mymodel --load-balancer the requests that the proxy has answered
  perdure serve logs mymodel --controller    what was decided, and what has happened
"""
)
@click.argument("name", shell_complete=suggestions.services)
@click.argument("replica_id", type=click.IntRange(min=1), required=False)
@click.option("--follow/--no-follow", default=True, show_default=True, help="Follow the log until the replica ends.")
@click.option("--tail", type=click.IntRange(min=0), default=0, metavar="N", help="Show only the last N lines.")
@click.option("--load-balancer", is_flag=True, help="Show the log of the proxy: it has no headers and no queries.")
@click.option("--controller", is_flag=True, help="Show what has happened to the service, and what was decided.")
def logs(name: str, replica_id: int | None, follow: bool, tail: int, load_balancer: bool, controller: bool) -> None:
    """Show the log of a replica, also after it has ended. Ctrl-C leaves it running."""
    from perdure.cli.client import connect
    from perdure.sdk import serve

    if (replica_id is not None) + load_balancer + controller != 1:
        raise Failure("give the number of a replica, --load-balancer or --controller", EXIT_WRONG_INPUT)
    client = connect()
    if controller:
        for entry in serve.timeline(name, limit=tail or None, client=client):
            click.echo(_line(entry))
        return None
    if replica_id is None:
        return click.echo(serve.proxy_log(name, tail=tail or None, client=client), nl=False)
    if (reason := _no_machine(serve.get(name, client=client), replica_id)) is not None:
        return click.echo(f"Replica {replica_id} of {name} had no machine{reason and ': '}{reason}", err=True)
    try:
        code = serve.tail_logs(name, replica_id, follow=follow, tail=tail or None, client=client)
    except KeyboardInterrupt:
        click.echo(f"\nDetached; replica {replica_id} of {name} keeps running.", err=True)
        raise SystemExit(EXIT_NOT_FINISHED) from None
    if code == EXIT_NOT_FOUND:
        raise Failure(f"{name} has no log of a replica {replica_id}\n  see `perdure serve status {name} -a`", code)
    raise SystemExit(code)


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
