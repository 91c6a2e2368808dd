"""`perdure gpus`."""

from __future__ import annotations

from collections.abc import Sequence

import click

from perdure.sdk import records

ROWS = 20


@click.command(
    epilog="""\b
Examples:
  perdure gpus                           every accelerator that can be had, and from how much on
  perdure gpus A100                      where, on which machines
  perdure gpus H100:8 --infra aws --all
  perdure gpus -o json | jq 'map(select(.spot_per_hour < 1))'
"""
)
@click.argument("name", required=False, metavar="[NAME[:COUNT]]")
@click.option("--infra", metavar="CLOUD[/REGION]", help="Only there.")
@click.option("-a", "--all", "everything", is_flag=True, help="Every region, not only the cheapest.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def gpus(name: str | None, infra: str | None, everything: bool, output: str) -> None:
    """What accelerators can be had, where, and for how much.

    Prices are in USD an hour for the whole machine, of the clouds that the controller can use (see `perdure check`).
    """
    from perdure.cli.connect import to_controller
    from perdure.cli.errors import Failure
    from perdure.cli.progress import working

    wanted, count = _chosen(name)
    cloud, _, region = (infra or "").lower().partition("/")
    client = to_controller()
    with working("Asking the clouds"):
        found = client.gpus(name=wanted, count=count, cloud=cloud, region=region)
    if output == "json":
        import json

        click.echo(json.dumps(found, indent=1))
        return
    if not found:
        what = f"no {name}" if name else "no accelerator"
        where = f" in {infra}" if infra else ""
        raise Failure(f"{what} can be had{where}\n  see which clouds can be used: perdure check")
    for line in _machines(found, everything=everything) if name else _overview(found):
        click.echo(line)
    click.echo(f"Prices: {'; '.join(_ages(found))}")


def _ages(found: Sequence[records.Gpu]) -> list[str]:
    """How old the prices are, cloud by cloud."""
    import time

    from perdure.cli.text import ago, epoch

    told, now = [], time.time()
    for cloud in sorted({row["cloud"] for row in found}):
        at = sorted({row["priced_at"] for row in found if row["cloud"] == cloud and row["priced_at"]}, key=epoch)
        spans = list(dict.fromkeys((ago(at[0], now), ago(at[-1], now)))) if at else []
        tables = {row["table_of"] for row in found if row["cloud"] == cloud and row["table_of"]}
        parts = [f"asked {' to '.join(spans)}"] if spans else []
        parts += [f"{'else ' if at else ''}of the built-in table of {month}" for month in sorted(tables)]
        told.append(f"{cloud} {', '.join(parts) or 'as config.yaml says'}")
    return told


def _chosen(name: str | None) -> tuple[str, float | None]:
    """Name and count as asked for. Raises Failure."""
    if name is None:
        return "", None
    from perdure.cli.errors import EXIT_WRONG_INPUT, Failure
    from perdure.sdk import accelerators
    from perdure.sdk.problems import Refused

    try:
        ((wanted, count),) = accelerators.choices(accelerators.read(name))
    except (Refused, ValueError) as error:
        raise Failure(f"{name!r} is no accelerator\n  write NAME or NAME:COUNT", EXIT_WRONG_INPUT) from error
    return wanted, count if ":" in name else None


def _overview(found: Sequence[records.Gpu]) -> list[str]:
    from perdure.cli.table import Column, render, screen_width

    columns = [
        *(Column("GPU"), Column("COUNTS"), Column("CLOUDS", least=6, drop=1)),
        *(Column("SPOT $/HR", right=True), Column("ON-DEMAND $/HR", right=True)),
    ]
    rows = []
    for name in dict.fromkeys(row["accelerator"] for row in found):
        of_it = [row for row in found if row["accelerator"] == name]
        least = [row for row in of_it if row["count"] == of_it[0]["count"]]
        counts = ", ".join(f"{count:g}" for count in dict.fromkeys(row["count"] for row in of_it))
        clouds = ", ".join(sorted({row["cloud"] for row in of_it}))
        spot = _cheapest([row["spot_per_hour"] for row in least])
        rows.append([name, counts, clouds, spot, _cheapest([row["on_demand_per_hour"] for row in least])])
    told = "Prices are those of the least count; for where and on which machines: perdure gpus NAME"
    return [*render(columns, rows, width=screen_width()), told]


def _machines(found: Sequence[records.Gpu], *, everything: bool) -> list[str]:
    from perdure.cli.table import Column, render, screen_width

    columns = [
        *(Column("GPU"), Column("INFRA", least=12), Column("INSTANCE", least=10), Column("vCPUs", right=True, drop=2)),
        *(Column("MEM(GB)", right=True, drop=2), Column("ZONES", right=True, drop=1)),
        *(Column("SPOT $/HR", right=True), Column("ON-DEMAND $/HR", right=True)),
    ]
    shown = found if everything else found[:ROWS]
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
    rest = len(found) - len(shown)
    more = [f"… and {rest} more: perdure gpus … --all"] if rest else []
    return [*render(columns, rows, width=screen_width()), *more]


def _cheapest(prices: Sequence[float | None]) -> str:
    known = [price for price in prices if price is not None]
    return f"{min(known):.3f}" if known else "-"
