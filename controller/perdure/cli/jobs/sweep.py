"""`perdure jobs sweep`: jobs that were launched together, seen and acted on as one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, TypedDict, cast

import click

from perdure.cli.errors import EXIT_WRONG_INPUT, Failure
from perdure.cli.output import table, text
from perdure.cli.output.confirm import confirm
from perdure.cli.output.progress import spinner
from perdure.cli.output.table import Column
from perdure.recovery.statuses import TERMINAL, Status

if TYPE_CHECKING:
    from perdure.sdk.connection import api_types
    from perdure.sdk.connection.client import Client

COLUMNS = (
    Column("RANK", right=True),
    Column("JOB", right=True),
    Column("VALUES", min_width=10),
    Column("STATUS"),
    Column("MESSAGE", min_width=10, drop_rank=1),
)


class SweepJob(TypedDict):
    """As in the API."""

    rank: int
    job_id: int
    status: str
    values: dict[str, str]
    message: str


class Sweep(TypedDict):
    """As in the API."""

    sweep_id: int
    name: str
    size: int
    counts: dict[str, int]
    cost_usd: float
    jobs: list[SweepJob]


class Retried(TypedDict):
    job_ids: list[int]


@click.command(
    epilog="""\b
Examples:
  perdure jobs sweep 12                  every job of the sweep, with its values
  perdure jobs sweep 12 --retry-failed   launch those that have failed again
  perdure jobs sweep 12 --cancel -y
  perdure jobs sweep 12 --logs | grep loss

\b
A sweep has the id of its first job. It is launched by `sweep:` in the YAML, or by --num-jobs.
""",
)
@click.argument("sweep_id", type=click.IntRange(min=1), metavar="ID")
@click.option("--cancel", "is_cancelled", is_flag=True, help="Cancel its jobs that have not ended.")
@click.option("--retry-failed", is_flag=True, help="Launch its jobs that have failed again, with the same values.")
@click.option("--logs", "shows_logs", is_flag=True, help="Print the logs of all of its jobs so far, by rank.")
@click.option(
    "-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True, help="Output format."
)
@click.option("-y", "--yes", is_flag=True, help="Skip confirmation.")
def sweep(sweep_id: int, is_cancelled: bool, retry_failed: bool, shows_logs: bool, output: str, yes: bool) -> None:
    """Show a sweep, or act on all of its jobs."""
    from perdure.cli.client import connect

    if [is_cancelled, retry_failed, shows_logs].count(True) > 1:
        raise Failure("--cancel, --retry-failed and --logs exclude each other", EXIT_WRONG_INPUT)
    client = connect()
    one_sweep = fetch(client, sweep_id)
    if is_cancelled:
        return _cancel(client, one_sweep, yes=yes)
    if retry_failed:
        return _retry(client, one_sweep, yes=yes)
    if shows_logs:
        return _print_logs(client, one_sweep)
    if output == "json":
        return click.echo(json.dumps(one_sweep, indent=1))
    for line in lines(one_sweep):
        click.echo(line)


def fetch(client: Client, sweep_id: int) -> Sweep:
    return client.call(Sweep, "GET", f"/sweeps/{sweep_id}")


def one_row_each(
    pages: Callable[[int | None], Iterator[api_types.JobPage]], client: Client, limit: int | None
) -> Iterator[api_types.JobPage]:
    """`pages(limit)` with one row for each sweep. `pages`: the pages with so many jobs, or with all."""
    if limit is not None:
        first = list(pages(limit))
        if all(job.get("sweep_id") is None for page in first for job in page["jobs"]):
            return iter(first)
    return collapsed(pages(None), client, limit)


def collapsed(pages: Iterable[api_types.JobPage], client: Client, limit: int | None) -> Iterator[api_types.JobPage]:
    """The pages with one row for each sweep, at the place of its newest job; at most `limit` rows."""
    seen: set[int] = set()
    rows = 0
    for page in pages:
        kept: list[api_types.Job] = []
        for job in page["jobs"]:
            sweep_id = job.get("sweep_id")  # an older controller has none
            if sweep_id is None:
                kept.append(job)
            elif sweep_id not in seen:
                seen.add(sweep_id)
                kept.append(_as_one(job, fetch(client, sweep_id)))
        room = None if limit is None else max(0, limit - rows)
        yield {**page, "jobs": kept[:room]}
        rows += len(kept)
        if limit is not None and rows >= limit:
            return


def _as_one(job: api_types.Job, one_sweep: Sweep) -> api_types.Job:
    """The row of a sweep: the status of one that stands for all, and how many have which."""
    counts = one_sweep["counts"]
    live = [status for status in counts if status not in TERMINAL]
    failed = [status for status in counts if status not in (Status.SUCCEEDED, Status.CANCELLED)]
    order = [Status.RUNNING, *live, *failed, Status.CANCELLED]
    status = next((status for status in order if status in counts), Status.SUCCEEDED)
    name = f"{one_sweep['name']} ×{one_sweep['size']}: {summary(counts)}"
    shown = {"job_id": one_sweep["sweep_id"], "name": name, "status": str(status), "cost_usd": one_sweep["cost_usd"]}
    return cast("api_types.Job", {**job, **shown, "message": "", "on_demand_cost_usd": 0.0})


def summary(counts: Mapping[str, int]) -> str:
    """`40 SUCCEEDED, 2 FAILED`."""
    return ", ".join(f"{count} {status}" for status, count in sorted(counts.items(), key=lambda item: -item[1]))


def lines(one_sweep: Sweep) -> Iterator[str]:
    """The lines of `perdure jobs sweep`."""
    yield f"Sweep {one_sweep['sweep_id']} ({text.one_line(one_sweep['name'])}): {summary(one_sweep['counts'])}"
    yield f"  cost  {text.money(one_sweep['cost_usd'])}"
    rows = [
        [str(job["rank"]), str(job["job_id"]), values(job), job["status"], text.one_line(job["message"])]
        for job in one_sweep["jobs"]
    ]
    yield ""
    yield from table.render(COLUMNS, rows, width=table.screen_width(), paints={"STATUS": text.colored_status})


def values(job: SweepJob) -> str:
    """`lr=1e-3 seed=2`."""
    return " ".join(f"{name}={value}" for name, value in job["values"].items()) or "-"


def _cancel(client: Client, one_sweep: Sweep, *, yes: bool) -> None:
    from perdure.sdk import jobs

    ids = [job["job_id"] for job in one_sweep["jobs"] if job["status"] not in TERMINAL]
    if not ids:
        return click.echo("No jobs to cancel.")
    confirm(f"Cancel {len(ids)} jobs of sweep {one_sweep['sweep_id']}?", yes=yes)
    with spinner("Cancelling"):
        cancelled = jobs.cancel(ids, client=client)["cancelled"]
    click.echo(f"{len(cancelled)} jobs of sweep {one_sweep['sweep_id']} are scheduled to be cancelled.")


def _retry(client: Client, one_sweep: Sweep, *, yes: bool) -> None:
    from perdure.sdk import jobs

    confirm(f"Launch the failed jobs of sweep {one_sweep['sweep_id']} again?", yes=yes)
    retried = client.call(Retried, "POST", f"/sweeps/{one_sweep['sweep_id']}/retry", body={"key": jobs.new_key()})
    click.echo(f"{len(retried['job_ids'])} jobs of sweep {one_sweep['sweep_id']} submitted again.")


def _print_logs(client: Client, one_sweep: Sweep) -> None:
    """Each line behind the rank of its job."""
    import io

    from perdure.sdk import jobs

    for job in one_sweep["jobs"]:
        written = io.BytesIO()
        jobs.tail_logs(job["job_id"], follow=False, output_stream=written, client=client)
        for line in written.getvalue().decode(errors="replace").splitlines():
            click.echo(f"(rank {job['rank']}) {line}")
