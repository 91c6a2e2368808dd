"""`perdure status` and `perdure queue`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from perdure.cli.clusters.output import output_option, print_json
from perdure.cli.completion import suggestions
from perdure.cli.errors import EXIT_FAILED_COMMAND, EXIT_WRONG_INPUT, Failure
from perdure.cli.output import table, text
from perdure.cli.output.table import Column
from perdure.sdk.connection import api_types

if TYPE_CHECKING:
    from perdure.sdk.connection.client import Client

STATUS_COLUMNS = (
    Column("NAME", min_width=8),
    Column("INFRA", min_width=10, drop_rank=2),
    Column("RESOURCES", min_width=10, drop_rank=3),
    Column("STATUS"),
    Column("AUTOSTOP", drop_rank=4),
    Column("LAUNCHED", drop_rank=5),
)
STATUS_DETAILS = (Column("HEAD_IP"), Column("COMMAND", min_width=10), Column("LAST_EVENT"))
QUEUE_COLUMNS = (
    Column("ID", right=True),
    Column("NAME", min_width=8),
    Column("USER", drop_rank=5),
    Column("SUBMITTED", drop_rank=3),
    Column("STARTED", drop_rank=4),
    Column("DURATION", drop_rank=2),
    Column("RESOURCES", min_width=10, drop_rank=6),
    Column("STATUS"),
    Column("LOG", drop_rank=7),
)
_USER = Column("USER")
MAX_WAIT_REASONS = 3


@click.command(
    epilog="""\b
Examples:
  perdure status
  perdure status 'dev-*'                 quote the pattern to protect it from the shell
  perdure status dev --ip
  perdure status -o json | jq '.[] | select(.status == "UP") | .name'

\b
Statuses: INIT it is being launched, UP its machines take jobs, STOPPED, AUTOSTOPPING,
PREEMPTED its machines were lost (`perdure start` launches others; queue and logs stay).
"""
)
@click.argument("names", nargs=-1, metavar="[CLUSTERS]...", shell_complete=suggestions.clusters)
@click.option("-v", "--verbose", is_flag=True, help="Add address, command and last event; cut nothing.")
@click.option("-u", "--all-users", is_flag=True, help="Add the column USER. All clusters are shown in any case.")
@click.option("--ip", is_flag=True, help="Print the address of the first node of the one cluster that is given.")
@click.option("--endpoints", is_flag=True, help="Print how the ports of the one cluster that is given are reached.")
@click.option("--endpoint", type=click.IntRange(1, 65535), metavar="PORT", help="The same of one port.")
@click.option("--show-managed-jobs/--no-show-managed-jobs", default=True, help="Show a line about managed jobs, too.")
@click.option("--show-services/--no-show-services", default=True, help="Show a line about services, too.")
@click.option("--show-pools/--no-show-pools", default=True, hidden=True)
@click.option("-r", "--refresh", is_flag=True, hidden=True)
@output_option
def status(
    names: tuple[str, ...],
    verbose: bool,
    all_users: bool,
    ip: bool,
    endpoints: bool,
    endpoint: int | None,
    show_managed_jobs: bool,
    show_services: bool,
    show_pools: bool,  # noqa: ARG001 - there are none
    refresh: bool,  # noqa: ARG001 - what is shown is always up to date
    output: str,
) -> None:
    """List clusters."""
    from perdure.cli.client import connect
    from perdure.cli.clusters.names import is_pattern
    from perdure.sdk import clusters

    client = connect()
    if endpoints or endpoint is not None:
        return _print_endpoints(client, names, endpoint)
    listed = clusters.clusters(names or None, client=client)
    missing = [name for name in names if not is_pattern(name) and name not in {cluster["name"] for cluster in listed}]
    for name in missing:
        click.echo(f"Cluster {name!r} not found.", err=True)
    if output == "json" and not ip:
        print_json(listed)
    elif missing and not listed:
        pass  # others may exist
    elif names and not listed:
        click.echo(f"No cluster has a name that matches {' or '.join(names)}.")
    elif ip:
        _print_ip(listed)
    else:
        _print_clusters(listed, verbose=verbose, all_users=all_users)
        if not names:
            _print_others(client, with_jobs=show_managed_jobs, with_services=show_services)
    if missing:
        raise SystemExit(EXIT_FAILED_COMMAND)


def _print_endpoints(client: Client, names: Sequence[str], port: int | None) -> None:
    """The address of each open port; with `port`, only its address. Raises `Failure` if none is open."""
    from perdure.sdk import clusters

    if len(names) != 1:
        raise Failure("give the name of one cluster, whose endpoints are printed", exit_code=EXIT_WRONG_INPUT)
    opened = clusters.get(clusters.endpoints(names[0], port, client=client))
    if not opened:
        what, port_text = ("no port", "PORT") if port is None else (f"port {port} not", str(port))
        fix = f"to reach it at http://127.0.0.1:{port_text}: perdure port-forward {names[0]} {port_text}"
        raise Failure(f"the cluster {names[0]} opens {what} to the internet\n  {fix}")
    for name, address in opened.items():
        click.echo(address if port is not None else f"{name}: {address}")


def _print_clusters(listed: Sequence[api_types.Cluster], *, verbose: bool, all_users: bool) -> None:
    click.echo(click.style("Clusters", bold=True))
    for line in _status_lines(listed, verbose=verbose, all_users=all_users):
        click.echo(line)
    for cluster in listed:
        if cluster.get("kept_disks"):  # an older controller keeps none
            click.echo(_disks_line(cluster))


def _disks_line(cluster: api_types.Cluster) -> str:
    count, price, cost = cluster["kept_disks"], cluster["disk_price_per_hour"], cluster["disk_cost"]
    disks = "disk is" if count == 1 else f"{count} disks are"
    money = f"for ${price:.4f} per hour, ${cost:.2f} so far" if price else "for nothing"
    return f"{cluster['name']}: its {disks} kept {money}; `perdure start {cluster['name']}` starts the machines again"


def _print_others(client: Client, *, with_jobs: bool, with_services: bool) -> None:
    """A line about managed jobs, and one about services if there are some."""
    if with_jobs:
        from perdure.cli.jobs.queue import summary

        counts = client.jobs(limit=1)["counts"]
        click.echo(click.style("\nManaged jobs", bold=True))
        click.echo(summary(counts))
    if with_services:
        from perdure.sdk import serve

        if services := serve.status(client=client):
            click.echo(click.style("\nServices", bold=True))
            for service in services:
                click.echo(f"{service['name']}: {text.colored_status(service['status'])}")


@click.command(
    epilog="""\b
Examples:
  perdure queue dev
  perdure queue -s dev                   hide finished jobs
  perdure queue dev -o json | jq '.dev[] | select(.status == "FAILED") | .number'
"""
)
@click.argument("names", nargs=-1, metavar="[CLUSTERS]...", shell_complete=suggestions.clusters)
@click.option("-s", "--skip-finished", is_flag=True, help="Hide finished jobs.")
@click.option("-u", "--all-users", is_flag=True, hidden=True)
@output_option
def queue(
    names: tuple[str, ...],
    skip_finished: bool,
    all_users: bool,  # noqa: ARG001 - those of all users are shown in any case
    output: str,
) -> None:
    """List the jobs of clusters, newest first. The queue of a cluster that is down stays readable by its name."""
    from perdure.cli.client import connect
    from perdure.cli.clusters.names import is_pattern
    from perdure.sdk import clusters
    from perdure.sdk.clusters import queues as many

    client = connect()
    if names and not any(map(is_pattern, names)):
        listed = [clusters.cluster_queue(name, client=client) for name in dict.fromkeys(names)]
        now = listed[0]["now"]
        queues = {name: one["cluster"] for name, one in zip(dict.fromkeys(names), listed, strict=True)}
        every = {name: one["jobs"] for name, one in zip(queues, listed, strict=True)}
    else:
        answer = many.fetch(names or None, skip_finished=skip_finished, client=client)
        now = answer["now"]
        queues = {one["cluster"]["name"]: one["cluster"] for one in answer["queues"]}
        every = {one["cluster"]["name"]: one["jobs"] for one in answer["queues"]}
    shown = {name: [job for job in jobs if not (skip_finished and job["has_ended"])] for name, jobs in every.items()}
    if output == "json":
        return print_json(shown)
    if not queues:
        click.echo("No existing clusters.")
    for name, cluster in queues.items():
        lines = [
            f"\nJob queue of cluster {click.style(name, bold=True)} ({cluster['status']})",
            *_queue_lines(name, shown[name], text.to_epoch(now)),
            *_wait_lines(shown[name]),
        ]
        click.echo("\n".join(lines))


def _print_ip(listed: Sequence[api_types.Cluster]) -> None:
    if len(listed) != 1:
        raise Failure("--ip takes exactly one cluster", EXIT_WRONG_INPUT)
    if not listed[0]["head_ip"]:
        raise Failure(f"the cluster {listed[0]['name']} has no address: it is {listed[0]['status']}")
    click.echo(listed[0]["head_ip"])


def _status_lines(listed: Sequence[api_types.Cluster], *, verbose: bool, all_users: bool) -> list[str]:
    if not listed:
        return ["No existing clusters."]
    columns = list(STATUS_COLUMNS)
    if all_users:
        columns.insert(1, _USER)
    rows = []
    for cluster in listed:
        row = [
            cluster["name"],
            cluster["infra"],
            cluster["resources"],
            cluster["status"],
            _autostop(cluster),
            text.local_time(cluster["launched_at"]),
        ]
        if all_users:
            row.insert(1, cluster["user"])
        rows.append(
            row + ([cluster["head_ip"] or "-", cluster["command"], cluster["message"] or "-"] if verbose else [])
        )
    columns += STATUS_DETAILS if verbose else ()
    width = None if verbose else table.screen_width()
    return table.render(columns, rows, width=width, paints={"STATUS": text.colored_status})


def _queue_lines(name: str, jobs: Sequence[api_types.ClusterJob], now: float) -> list[str]:
    if not jobs:
        return ["No jobs."]
    rows = [
        [
            str(job["number"]),
            job["name"],
            job["user"],
            text.ago(job["submitted_at"], now),
            text.ago(job["started_at"], now),
            text.duration(job["duration_s"]) if job["started_at"] else "-",
            job["resources"],
            job["status"],
            f"perdure logs {name} {job['number']}",
        ]
        for job in jobs
    ]
    return table.render(QUEUE_COLUMNS, rows, width=table.screen_width(), paints={"STATUS": text.colored_status})


def _wait_lines(jobs: Sequence[api_types.ClusterJob]) -> list[str]:
    """Why the first jobs of the queue wait."""
    waiting = [job for job in reversed(jobs) if job["status"] == "PENDING" and job["message"]]
    lines = [f"Job {job['number']} is waiting: {text.one_line(job['message'])}" for job in waiting[:MAX_WAIT_REASONS]]
    return lines + (["… and others; for the reason: -o json"] if len(waiting) > MAX_WAIT_REASONS else [])


def _autostop(cluster: api_types.Cluster) -> str:
    """`10m`, `1h`, `10m (down)`, `10m (jobs only)`, `10m (below 5%)`, or `-`."""
    seconds = cluster["autostop_s"]
    if seconds is None:
        return "-"
    minutes = seconds / 60
    shown = f"{minutes / 60:g}h" if minutes >= 60 and minutes % 60 == 0 else f"{minutes:g}m"
    shown += {"jobs": " (jobs only)", "none": " (always)"}.get(cluster["autostop_wait_for"], "")
    if (floor := cluster.get("autostop_idle_below")) is not None:  # an older controller has none
        shown += f" (below {100 * floor:g}%)"
    return f"{shown} (down)" if cluster["autostop_down"] else shown
