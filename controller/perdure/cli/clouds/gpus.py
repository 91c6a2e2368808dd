"""`perdure gpus`."""

from __future__ import annotations

from collections.abc import Sequence

import click

from perdure.cli.completion import suggestions
from perdure.sdk.connection import api_types

MAX_ROWS = 20


@click.command(
    epilog="""\b
Examples:
  perdure gpus                           all accelerators, with their lowest price
  perdure gpus A100                      regions and instance types
  perdure gpus H100:8 --infra aws --all
  perdure gpus -o json | jq 'map(select(.spot_per_hour < 1))'
"""
)
@click.argument("words", nargs=-1, metavar="[NAME[:COUNT]]")
@click.option("--infra", metavar="CLOUD[/REGION]", help="Only this cloud or region.", shell_complete=suggestions.clouds)
@click.option("-a", "--all", "everything", is_flag=True, help="Show all regions, not only the cheapest.")
@click.option(
    "-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True, help="Output format."
)
def gpus(words: tuple[str, ...], infra: str | None, everything: bool, output: str) -> None:
    """List accelerators with their clouds, regions and prices.

    Prices are in USD per hour for the whole machine, in the clouds that the controller can use (see `perdure check`).
    """
    from perdure.cli.client import connect
    from perdure.cli.errors import Failure
    from perdure.cli.output.progress import spinner
    from perdure.sdk.spec.infra import canonical_cloud

    if words[:1] == ("list",):  # `sky gpus list A100`
        words = words[1:]
    if len(words) > 1:
        raise click.UsageError(f"Got unexpected extra argument ({' '.join(words[1:])})")
    name = words[0] if words else None
    accelerator, count = _parse_name(name)
    cloud, _, region = (infra or "").partition("/")
    cloud = canonical_cloud(cloud)
    region = region if cloud == "kubernetes" else region.lower()  # the names of contexts are the user's
    client = connect()
    with spinner("Querying clouds"):
        gpu_rows = client.gpus(name=accelerator, count=count, cloud=cloud, region=region)
    if output == "json":
        import json

        click.echo(json.dumps(gpu_rows, indent=1))
        return
    if not gpu_rows:
        what = f"no {name}" if name else "no accelerators"
        where = f" in {infra}" if infra else ""
        raise Failure(f"{what} available{where}\n  to see which clouds are usable: perdure check")
    for line in _machines(gpu_rows, everything=everything) if name else _overview(gpu_rows):
        click.echo(line)
    click.echo(f"Prices: {'; '.join(_price_ages(gpu_rows))}")


def _price_ages(gpu_rows: Sequence[api_types.Gpu]) -> list[str]:
    """Where each cloud's prices come from, and how old they are."""
    import time

    from perdure.cli.output.text import ago, to_epoch

    sources, now = [], time.time()
    for cloud in sorted({row["cloud"] for row in gpu_rows}):
        at = sorted({row["priced_at"] for row in gpu_rows if row["cloud"] == cloud and row["priced_at"]}, key=to_epoch)
        spans = list(dict.fromkeys((ago(at[0], now), ago(at[-1], now)))) if at else []
        tables = {row["catalog_month"] for row in gpu_rows if row["cloud"] == cloud and row["catalog_month"]}
        parts = [f"fetched {' to '.join(spans)}"] if spans else []
        parts += [f"{'otherwise ' if at else ''}built-in table of {month}" for month in sorted(tables)]
        sources.append(f"{cloud} {', '.join(parts) or 'from config.yaml'}")
    return sources


def _parse_name(name: str | None) -> tuple[str, float | None]:
    """The requested name and count. Raises `Failure`."""
    if name is None:
        return "", None
    from perdure.cli.errors import EXIT_WRONG_INPUT, Failure
    from perdure.sdk.spec import accelerators
    from perdure.sdk.spec.problems import InvalidValue

    try:
        ((accelerator, count),) = accelerators.choices(accelerators.parse(name))
    except (InvalidValue, ValueError) as error:
        raise Failure(f"{name!r} is not an accelerator\n  write NAME or NAME:COUNT", EXIT_WRONG_INPUT) from error
    return accelerator, count if ":" in name else None


def _overview(gpu_rows: Sequence[api_types.Gpu]) -> list[str]:
    from perdure.cli.output.table import Column, render, screen_width

    columns = [
        *(Column("GPU"), Column("COUNTS"), Column("CLOUDS", min_width=6, drop_rank=1)),
        *(Column("SPOT $/HR", right=True), Column("ON-DEMAND $/HR", right=True)),
    ]
    rows = []
    for name in dict.fromkeys(row["accelerator"] for row in gpu_rows):
        offers = [row for row in gpu_rows if row["accelerator"] == name]
        smallest = [row for row in offers if row["count"] == offers[0]["count"]]
        counts = ", ".join(f"{count:g}" for count in dict.fromkeys(row["count"] for row in offers))
        clouds = ", ".join(sorted({row["cloud"] for row in offers}))
        spot = _cheapest([row["spot_per_hour"] for row in smallest])
        rows.append([name, counts, clouds, spot, _cheapest([row["on_demand_per_hour"] for row in smallest])])
    hint = "Prices are for the smallest count; for regions and instance types: perdure gpus NAME"
    return [*render(columns, rows, width=screen_width()), hint]


def _machines(gpu_rows: Sequence[api_types.Gpu], *, everything: bool) -> list[str]:
    from perdure.cli.output.table import Column, render, screen_width

    columns = [
        *(
            Column("GPU"),
            Column("INFRA", min_width=12, keep_end=True),
            Column("INSTANCE", min_width=10),
            Column("vCPUs", right=True, drop_rank=2),
        ),
        *(Column("MEM(GB)", right=True, drop_rank=2), Column("ZONES", right=True, drop_rank=1)),
        *(Column("SPOT $/HR", right=True), Column("ON-DEMAND $/HR", right=True)),
    ]
    shown = gpu_rows if everything else gpu_rows[:MAX_ROWS]
    rows = [
        [
            f"{row['accelerator']}:{row['count']:g}",
            f"{row['cloud']}/{row['region']}",
            row["instance_type"],
            f"{row['vcpus']:g}",
            f"{row['memory_gib']:g}",
            str(row["zones"]) if row["zones"] else "-",
            _cheapest([row["spot_per_hour"]]),
            _cheapest([row["on_demand_per_hour"]]),
        ]
        for row in shown
    ]
    rest = len(gpu_rows) - len(shown)
    more = [f"… and {rest} more: perdure gpus … --all"] if rest else []
    return [*render(columns, rows, width=screen_width()), *more]


def _cheapest(prices: Sequence[float | None]) -> str:
    known = [price for price in prices if price is not None]
    return f"{min(known):.3f}" if known else "-"
