"""`perdure users`: named users, their roles, limits and budgets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from perdure.cli.lazy import CONTEXT
from perdure.sdk.connection import users as calls

_ROLE = click.Choice(calls.ROLES)
_LOCAL_CLOUD = (
    "jobs on the local cloud run on the controller's computer, and can read what it stores, tokens of others included\n"
    "  unless you trust this user with that, set `local: false` in the controller's config.yaml"
)
_COUNT = click.IntRange(min=0)
_JSON = click.option(
    "-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Output format."
)


@click.group(
    context_settings=CONTEXT,
    epilog="""\b
Examples:
  perdure users create alice             then: perdure tokens create alice
  perdure users create bob --role operator
  perdure users update alice --max-running-jobs 4
  perdure users set-budget alice 500     USD for each calendar month
  perdure users disable alice            refuses all tokens of alice; her jobs go on
\b
Roles:
  viewer     sees the jobs and logs of everybody, and changes nothing
  user       launches, and sees and cancels what is the user's own
  operator   sees and cancels what is anybody's
  admin      may do everything; the token in PERDURE_HOME is an admin's
""",
)
def users() -> None:
    """Add users, and set their roles, limits and budgets. For administrators."""


@users.command(name="create")
@click.argument("name")
@click.option("--role", type=_ROLE, default="user", show_default=True, help="What the user may do.")
@click.option("--max-jobs", type=_COUNT, metavar="N", help="How many unfinished jobs the user may have.")
@click.option("--max-running-jobs", type=_COUNT, metavar="N", help="How many jobs of the user may have machines.")
def create(name: str, role: str, max_jobs: int | None, max_running_jobs: int | None) -> None:
    """Add the user NAME.

    From the first user on, a job's user is the owner of the token that launched it. Jobs that were launched earlier
    under this name become the user's.
    """
    from perdure.cli.client import connect
    from perdure.cli.errors import warn

    client = connect()
    changes = {"role": role, "max_jobs": max_jobs, "max_running_jobs": max_running_jobs}
    made = calls.create_user(client, name, {key: value for key, value in changes.items() if value is not None})
    if role in ("user", "operator") and any(cloud["name"] == "local" and cloud["usable"] for cloud in client.clouds()):
        warn(_LOCAL_CLOUD)
    click.echo(f"Added {made['name']} with the role {made['role']}.", err=True)
    click.echo(f"To create a token, run: perdure tokens create {made['name']}", err=True)


@users.command(name="list")
@_JSON
def list_command(output: str) -> None:
    """List all users."""
    from perdure.cli.client import connect

    rows = calls.list_users(connect())
    if output == "json":
        import json

        click.echo(json.dumps(rows, indent=1))
        return
    for line in _table(rows):
        click.echo(line)


@users.command(name="update")
@click.argument("name")
@click.option("--role", type=_ROLE, help="What the user may do.")
@click.option("--max-jobs", metavar="N|none", help="How many unfinished jobs the user may have.")
@click.option("--max-running-jobs", metavar="N|none", help="How many jobs of the user may have machines.")
def update(name: str, role: str | None, max_jobs: str | None, max_running_jobs: str | None) -> None:
    """Change the role or the limits of the user NAME. `none` removes a limit; then that of config.yaml applies."""
    from perdure.cli.client import connect
    from perdure.cli.errors import EXIT_WRONG_INPUT, Failure

    changes: dict[str, Any] = {} if role is None else {"role": role}
    for key, text in (("max_jobs", max_jobs), ("max_running_jobs", max_running_jobs)):
        if text is not None:
            changes[key] = _number(text, key)
    if not changes:
        raise Failure("nothing to change\n  give --role, --max-jobs or --max-running-jobs", EXIT_WRONG_INPUT)
    changed = calls.change_user(connect(), name, changes)
    click.echo(f"{changed['name']}: role {changed['role']}, {_limits(changed)}.", err=True)


@users.command(name="set-budget", context_settings={"ignore_unknown_options": True})  # of a negative amount
@click.argument("name")
@click.argument("usd", metavar="USD|none")
@click.option(
    "--then",
    "action",
    type=click.Choice(["keep", "end"]),
    help="What happens to running jobs once it is spent; new ones are refused.  [default: keep, or what it was]",
)
def set_budget(name: str, usd: str, action: str | None) -> None:
    """Set what the machines of the user NAME may cost in each calendar month (UTC). `none` removes the budget.

    At 80 %, a notification is sent. At 100 %, new jobs are refused, and those that wait for their first machine go on
    waiting until the next month. Jobs that have begun go on and recover (`--then keep`), or save their work and end
    (`--then end`).
    """
    from perdure.cli.client import connect

    changes: dict[str, Any] = {"budget_usd": _dollars(usd)}
    if action is not None:
        changes["budget_action"] = action
    changed = calls.change_user(connect(), name, changes)
    click.echo(f"{changed['name']}: {_budget(changed)}.", err=True)


@users.command(name="disable")
@click.argument("name")
def disable(name: str) -> None:
    """Refuse all tokens of the user NAME, and end their sessions. Jobs of the user go on."""
    from perdure.cli.client import connect

    calls.change_user(connect(), name, {"disabled": True})
    click.echo(
        f"{name} is disabled. To end the user's jobs, run: perdure jobs queue, and perdure jobs cancel", err=True
    )


@users.command(name="enable")
@click.argument("name")
def enable(name: str) -> None:
    """Accept the tokens of the user NAME again."""
    from perdure.cli.client import connect

    calls.change_user(connect(), name, {"disabled": False})
    click.echo(f"{name} is enabled.", err=True)


def _number(text: str, key: str) -> int | None:
    from perdure.cli.errors import EXIT_WRONG_INPUT, Failure

    if text == "none":
        return None
    if not (text.isascii() and text.isdecimal()):
        option = key.replace("_", "-")
        raise Failure(f"--{option}: {text!r} is not a number\n  give a whole number, or none", EXIT_WRONG_INPUT)
    return int(text)


def _dollars(text: str) -> float | None:
    from math import isfinite

    from perdure.cli.errors import EXIT_WRONG_INPUT, Failure

    if text == "none":
        return None
    try:
        usd = float(text.removeprefix("$"))
    except ValueError:
        usd = -1.0
    if not isfinite(usd) or usd < 0:
        raise Failure(f"{text!r} is not an amount\n  give USD for each month, such as 500, or none", EXIT_WRONG_INPUT)
    return usd


def _limits(user: calls.User) -> str:
    parts = [
        f"{name} {value}"
        for name, value in (("max-jobs", user["max_jobs"]), ("max-running-jobs", user["max_running_jobs"]))
        if value is not None
    ]
    return ", ".join(parts) or "limits of config.yaml"


def _plain(usd: float) -> str:
    """An amount without an exponent, and without zeros at its end."""
    return f"{usd:.10f}".rstrip("0").rstrip(".")


def _budget(user: calls.User) -> str:
    if user["budget_usd"] is None:
        return "no budget"
    then = {"keep": "then running jobs go on", "end": "then running jobs save their work and end"}
    return f"{_plain(user['budget_usd'])} USD for each calendar month, {then[user['budget_action']]}"


def _table(rows: Sequence[calls.User]) -> list[str]:
    from perdure.cli.output.table import Column, render, screen_width

    if not rows:
        return ["No users. The token in PERDURE_HOME is used by everybody; see `perdure users create --help`."]
    columns = [
        Column("NAME"),
        Column("ROLE"),
        Column("STATE"),
        Column("MAX JOBS", right=True, drop_rank=2),
        Column("MAX RUNNING", right=True, drop_rank=2),
        Column("SPENT", right=True),
        Column("BUDGET", right=True),
    ]
    cells = [
        [
            row["name"],
            row["role"],
            "disabled" if row["disabled_at"] else "active",
            _or_dash(row["max_jobs"]),
            _or_dash(row["max_running_jobs"]),
            f"${row['spent_usd'] or 0.0:,.2f}",
            "-" if row["budget_usd"] is None else f"${row['budget_usd']:,.2f}",
        ]
        for row in rows
    ]
    return render(columns, cells, width=screen_width())


def _or_dash(value: int | None) -> str:
    return "-" if value is None else str(value)
