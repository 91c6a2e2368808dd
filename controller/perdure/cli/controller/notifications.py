"""`perdure notify`: what was sent, and tests of channels."""

from __future__ import annotations

from collections.abc import Sequence

import click

from perdure.cli.lazy import CONTEXT
from perdure.sdk.connection import api_types


@click.group(
    context_settings=CONTEXT,
    epilog="""\b
Examples:
  perdure notify list                    what was sent where, and the answers
  perdure notify list --job 7
  perdure notify test ops                send a test message to the channel `ops`
""",
)
def notify() -> None:
    """List notifications, and test their channels.

    The controller's config.yaml defines channels, under `notify`; a task names those that receive its events.
    """


@notify.command(name="list")
@click.option("-n", "--limit", type=click.IntRange(1, 1000), default=50, show_default=True, help="How many to show.")
@click.option("--channel", metavar="NAME", help="Only those for this channel.")
@click.option("--job", "job_id", type=click.IntRange(1), metavar="ID", help="Only those about this job.")
@click.option(
    "-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Output format."
)
def list_command(limit: int, channel: str | None, job_id: int | None, output: str) -> None:
    """List notifications, the newest first: those that were sent, that wait, and that were given up."""
    from perdure.cli.client import connect
    from perdure.sdk.notify.calls import list_notifications

    rows = list_notifications(connect(), limit=limit, channel=channel, job_id=job_id)
    if output == "json":
        import json

        click.echo(json.dumps(rows, indent=1))
        return
    for line in _table(rows):
        click.echo(line)


@notify.command(name="test")
@click.argument("channel")
def test_command(channel: str) -> None:
    """Send a test message to CHANNEL, and wait for the result. Exits with 1 if it is not delivered."""
    from perdure.cli.client import connect, outdated_config
    from perdure.cli.errors import Failure, warn
    from perdure.sdk.notify.calls import test_channel

    client = connect()
    if note := outdated_config(client.controller()):
        warn(note)
    result = test_channel(client, channel)
    if not result["delivered"]:
        raise Failure(f"the test message to {channel} was not delivered: {result['detail']}")
    click.echo(f"Delivered a test message to {channel}" + (f" ({result['detail']})." if result["detail"] else "."))


def _table(rows: Sequence[api_types.Notification]) -> list[str]:
    import time

    from perdure.cli.output.table import Column, render, screen_width
    from perdure.cli.output.text import ago

    if not rows:
        return ["No notifications."]
    columns = [
        Column("WHEN"),
        Column("EVENT"),
        Column("JOB", right=True),
        Column("CHANNEL", min_width=6),
        Column("RESULT"),
        Column("TRIES", right=True, drop_rank=2),
        Column("DETAIL", min_width=10, drop_rank=1),
    ]
    now = time.time()
    cells = [
        [
            ago(row["at"], now),
            row["event"],
            str(row["job_id"] or "-"),
            row["channel"],
            row["outcome"] or ("failed, waits" if row["tries"] else "waits"),
            str(row["tries"]),
            row["detail"] or "",
        ]
        for row in rows
    ]
    return render(columns, cells, width=screen_width())
