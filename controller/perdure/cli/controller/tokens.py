"""`perdure tokens` and `perdure whoami`."""

from __future__ import annotations

from collections.abc import Sequence

import click

from perdure.cli.lazy import CONTEXT
from perdure.sdk.connection import users as calls

_JSON = click.option(
    "-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Output format."
)


@click.group(
    context_settings=CONTEXT,
    epilog="""\b
Examples:
  perdure tokens create alice            prints the token, this once
  perdure tokens create ci --days 365 --label "nightly runs"
  perdure tokens create alice --role viewer --never-expires > wall-screen.token
  perdure tokens list
  perdure tokens revoke Ab3dE5fG7h
""",
)
def tokens() -> None:
    """Create, list and revoke the tokens of users.

    A user sets PERDURE_TOKEN (or PERDURE_TOKEN_FILE) to a token, and PERDURE_ENDPOINT to the controller's address.
    """


@tokens.command(name="create")
@click.argument("user")
@click.option("--label", default="", help="What the token is for.")
@click.option(
    "--role",
    type=click.Choice(calls.ROLES),
    help="What the token may do at most.  [default: the user's role]",
)
@click.option(
    "--days",
    type=click.FloatRange(min=0, min_open=True, max=3650),
    default=calls.DEFAULT_DAYS,
    show_default=True,
    help="How long it is valid.",
)
@click.option("--never-expires", is_flag=True, help="Valid until it is revoked.")
def create(user: str, label: str, role: str | None, days: float, never_expires: bool) -> None:
    """Create a token of USER and print it on stdout. It is stored as a digest only, so it cannot be shown again."""
    from perdure.cli.client import connect

    client = connect()
    made = calls.create_token(client, user, label=label, role=role, days=None if never_expires else days)
    roles = {one["name"]: one["role"] for one in calls.list_users(client)} if role else {}
    effective = min(made["role"], roles.get(user, made["role"]), key=calls.ROLES.index)
    limited = f" ({made['role']} was requested, and {user} is {effective})" if effective != made["role"] else ""
    until = f"until {made['expires_at']}" if made["expires_at"] else "until it is revoked"
    click.echo(f"Token {made['id']} of {made['user']}, role {effective}{limited}, valid {until}:", err=True)
    click.echo(made["token"])


@tokens.command(name="list")
@click.argument("user", required=False)
@_JSON
def list_command(user: str | None, output: str) -> None:
    """List the tokens of USER, or all that you may see, without their secrets."""
    from perdure.cli.client import connect

    rows = calls.list_tokens(connect(), user)
    if output == "json":
        import json

        click.echo(json.dumps(rows, indent=1))
        return
    for line in _table(rows):
        click.echo(line)


@tokens.command(name="revoke")
@click.argument("token_id", metavar="ID")
def revoke(token_id: str) -> None:
    """Revoke the token ID. It is refused at once, and its open streams end; with several controllers, within 5 s."""
    from perdure.cli.client import connect

    revoked = calls.revoke_token(connect(), token_id)
    click.echo(f"Token {revoked['id']} of {revoked['user']} is revoked.", err=True)


@click.command(
    epilog="""\b
Examples:
  perdure whoami
  perdure whoami -o json
"""
)
@_JSON
def whoami(output: str) -> None:
    """Show whose token is used, and what it allows."""
    from perdure.cli.client import connect

    me = calls.whoami(connect())
    if output == "json":
        import json

        click.echo(json.dumps(me, indent=1))
        return
    what = f"token {me['token']} ({me['token_role']})" if me["token"] else "the controller's own token"
    until = f", valid until {me['expires_at']}" if me["expires_at"] else ""
    click.echo(f"{me['user']}, {me['role']}; {what}{until}")
    click.echo(f"sees the jobs of {'everybody' if me['sees_all'] else me['user']}; may {', '.join(me['permissions'])}")


def _table(rows: Sequence[calls.Token]) -> list[str]:
    import time

    from perdure.cli.output.table import Column, render, screen_width
    from perdure.cli.output.text import ago

    if not rows:
        return ["No tokens."]
    columns = [
        Column("ID"),
        Column("USER"),
        Column("ROLE"),
        Column("STATE"),
        Column("EXPIRES"),
        Column("LAST USED", drop_rank=1),
        Column("LABEL", min_width=6, drop_rank=2),
    ]
    now = time.time()
    cells = [
        [
            row["id"],
            row["user"],
            row["role"],
            _state(row, now),
            (row["expires_at"] or "never")[:10],
            ago(row["last_used_at"], now) if row["last_used_at"] else "never",
            row["label"],
        ]
        for row in rows
    ]
    return render(columns, cells, width=screen_width())


def _state(row: calls.Token, now: float) -> str:
    from datetime import datetime

    if row["revoked_at"]:
        return "revoked"
    expires_at = row["expires_at"]
    return "expired" if expires_at and datetime.fromisoformat(expires_at).timestamp() <= now else "valid"
