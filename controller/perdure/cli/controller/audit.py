"""`perdure audit`."""

from __future__ import annotations

from collections.abc import Sequence

import click

from perdure.sdk.connection import users as calls


@click.command(
    epilog="""\b
Examples:
  perdure audit                          the newest entries
  perdure audit --user alice --since 7d
  perdure audit --action job.            all that begin with `job.`, such as job.cancel
  perdure audit --denied -o json
"""
)
@click.option("-n", "--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="How many to show.")
@click.option("--user", metavar="NAME", help="Only what this user did.")
@click.option("--action", metavar="ACTION", help="Only this action; with a dot at the end, all that begin with it.")
@click.option("--denied", is_flag=True, help="Only what was not allowed.")
@click.option("--since", metavar="DURATION", help="Only of this time until now: 90m, 12h, 7d.")
@click.option("--before", type=click.IntRange(1), metavar="ID", help="Only entries before this one: the next page.")
@click.option(
    "-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Output format."
)
def audit(
    limit: int,
    user: str | None,
    action: str | None,
    denied: bool,
    since: str | None,
    before: int | None,
    output: str,
) -> None:
    """Show who did what, the newest first: launches, cancels, users and tokens, sign-ins, and what was refused.

    For administrators.
    """
    from perdure.cli.client import connect

    wanted = {"user": user, "action": action, "outcome": "denied" if denied else None, "since_s": _seconds(since)}
    rows = calls.audit_log(connect(), limit=limit, before=before, **wanted)
    if output == "json":
        import json

        click.echo(json.dumps(rows, indent=1))
        return
    for line in _table(rows):
        click.echo(line)


def _seconds(duration: str | None) -> float | None:
    from perdure.cli.errors import EXIT_WRONG_INPUT, Failure
    from perdure.sdk.spec.problems import InvalidValue
    from perdure.sdk.spec.values import deadlines

    if duration is None:
        return None
    try:
        return deadlines.seconds(deadlines.parse_duration(duration))
    except InvalidValue as error:
        raise Failure(f"--since: {error.message}\n  give {deadlines.DURATION}", EXIT_WRONG_INPUT) from error


def _table(rows: Sequence[calls.AuditEntry]) -> list[str]:
    from perdure.cli.output.table import Column, render, screen_width

    if not rows:
        return ["No entries."]
    columns = [
        Column("ID", right=True, drop_rank=3),
        Column("AT"),
        Column("USER"),
        Column("ACTION"),
        Column("TARGET", min_width=8),
        Column("OUTCOME"),
        Column("ADDRESS", drop_rank=2),
        Column("DETAIL", min_width=10, drop_rank=1),
    ]
    cells = [
        [
            str(row["id"]),
            row["at"][:19].replace("T", " "),
            row["user"] or "-",
            row["action"],
            row["target"] or "-",
            row["outcome"],
            row["address"] or "-",
            ", ".join(f"{name}={value}" for name, value in row["detail"].items() if value not in (None, "", [])),
        ]
        for row in rows
    ]
    return render(columns, cells, width=screen_width())
