"""`perdure serve status`."""

from __future__ import annotations

import json
from collections.abc import Sequence

import click

from perdure.cli.completion import suggestions
from perdure.cli.errors import EXIT_WRONG_INPUT, Failure
from perdure.cli.output import table, text
from perdure.cli.output.table import Column
from perdure.recovery.statuses import EXIT_NOT_FOUND
from perdure.sdk.serve import types

SERVICE_COLUMNS = (
    Column("NAME", min_width=8),
    Column("VERSION", right=True, drop_rank=3),
    Column("UPTIME", drop_rank=2),
    Column("STATUS"),
    Column("REPLICAS", right=True),
    Column("ENDPOINT"),
)
SERVICE_DETAILS = (Column("AUTOSCALING_POLICY"), Column("LOAD_BALANCING_POLICY"), Column("REQUESTED_RESOURCES"))
REPLICA_COLUMNS = (
    Column("SERVICE_NAME", min_width=8),
    Column("ID", right=True),
    Column("VERSION", right=True, drop_rank=3),
    Column("LAUNCHED", drop_rank=2),
    Column("INFRA", min_width=10, drop_rank=4),
    Column("RESOURCES", min_width=10, drop_rank=5),
    Column("STATUS"),
    Column("REQUESTS", right=True, drop_rank=6),
)
REPLICA_DETAILS = (Column("JOB", right=True), Column("MESSAGE"))
_QUIET_ENDS = ("TERMINATED", "PREEMPTED")


@click.command(
    epilog="""\b
Examples:
  perdure serve status
  perdure serve status mymodel -v
  curl -H "Authorization: Bearer $(perdure serve status mymodel --token)" \\
      $(perdure serve status mymodel --endpoint)/v1/models
  perdure serve status -o json | jq '.[] | select(.status != "READY") | .name'

\b
Statuses: REPLICA_INIT no replica is ready yet, READY, NO_REPLICA there is none,
FAILED it cannot start (the cause is shown), SHUTTING_DOWN.
"""
)
@click.argument("names", nargs=-1, metavar="[SERVICES]...", shell_complete=suggestions.services)
@click.option("-v", "--verbose", is_flag=True, help="Add policies, jobs and messages; cut nothing.")
@click.option("-a", "--all", "everything", is_flag=True, help="Show replicas that are over, too.")
@click.option("--endpoint", is_flag=True, help="Print the endpoint of the one service that is given.")
@click.option("--token", is_flag=True, help="Print the token of the one service that is given.")
@click.option(
    "-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True, help="Output format."
)
def status(names: tuple[str, ...], verbose: bool, everything: bool, endpoint: bool, token: bool, output: str) -> None:
    """List services and their replicas."""
    from perdure.cli.client import connect
    from perdure.sdk import serve

    client = connect()
    if endpoint or token:
        if len(names) != 1:
            raise Failure(f"{'--endpoint' if endpoint else '--token'} takes exactly one service", EXIT_WRONG_INPUT)
        access = serve.token(names[0], client=client)
        return click.echo(access["endpoint"] if endpoint else access["token"])
    services = serve.status(names or None, client=client)
    known = {service["name"] for service in services}
    missing = [name for name in names if not (set(name) & set("*?[")) and name not in known]
    for name in missing:
        click.echo(f"Service {name!r} not found.", err=True)
    if output == "json":
        click.echo(json.dumps(services, indent=1))
    elif names and not services:
        if not missing:
            click.echo(f"No service has a name that matches {' or '.join(names)}.")
    else:
        for line in _lines(services, verbose=verbose, everything=everything):
            click.echo(line)
    if missing:
        raise SystemExit(EXIT_NOT_FOUND)


def _lines(services: Sequence[types.Service], *, verbose: bool, everything: bool) -> list[str]:
    lines = [click.style("Services", bold=True)]
    if not services:
        return [*lines, "No live services."]
    width = None if verbose else table.screen_width()
    paints = {"STATUS": text.colored_status}
    columns = SERVICE_COLUMNS + (SERVICE_DETAILS if verbose else ())
    lines += table.render(columns, [_service_row(one, verbose=verbose) for one in services], width=width, paints=paints)
    lines += [f"  {one['name']}: {text.one_line(one['message'])}" for one in services if one["message"]]
    replicas = [one for service in services for one in service["replicas"] if everything or _is_shown(one)]
    lines += ["", click.style("Service Replicas", bold=True)]
    if not replicas:
        return [*lines, "No existing replicas."]
    columns = REPLICA_COLUMNS + (REPLICA_DETAILS if verbose else ())
    return lines + table.render(
        columns, [_replica_row(one, verbose=verbose) for one in replicas], width=width, paints=paints
    )


def _is_shown(replica: types.ServiceReplica) -> bool:
    return replica["ended_at"] is None or replica["status"] not in _QUIET_ENDS


def _service_row(service: types.Service, *, verbose: bool) -> list[str]:
    details = [service["autoscaling_policy"], service["load_balancing_policy"], service["requested_resources"]]
    return [
        service["name"],
        str(service["version"]),
        text.duration(service["uptime_s"]),
        service["status"],
        f"{service['ready_replicas']}/{service['target_replicas']}",
        service["endpoint"] or "-",
        *(details if verbose else ()),
    ]


def _replica_row(replica: types.ServiceReplica, *, verbose: bool) -> list[str]:
    job = "-" if replica["job_id"] is None else str(replica["job_id"])
    return [
        replica["service_name"],
        str(replica["number"]),
        str(replica["version"]),
        text.local_time(replica["launched_at"]),
        replica["infra"],
        replica["resources"],
        replica["status"],
        str(replica["requests"]),
        *((job, replica["message"] or "-") if verbose else ()),
    ]
