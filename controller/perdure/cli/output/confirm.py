"""Confirmation prompts."""

from __future__ import annotations

import sys

import click

from perdure.cli.errors import EXIT_FAILED_COMMAND, EXIT_WRONG_INPUT, Failure


def require_terminal_or_yes(*, yes: bool) -> None:
    """Fail early if a confirmation is needed but stdin is not a terminal. Raises `Failure`."""
    if not yes and not sys.stdin.isatty():
        raise Failure(
            "this needs confirmation, but stdin is not a terminal\n  add -y to skip confirmation", EXIT_WRONG_INPUT
        )


def confirm(question: str, *, yes: bool, default: bool = True) -> None:
    """Return if the user agrees, or with `yes`; else end the command with exit code 1, since nothing was done."""
    require_terminal_or_yes(yes=yes)
    try:
        agrees = yes or click.confirm(question, default=default)
    except click.Abort:  # Ctrl-C or Ctrl-D at the question
        click.echo(err=True)
        agrees = False
    if not agrees:
        click.echo("Nothing was changed.", err=True)
        raise click.exceptions.Exit(EXIT_FAILED_COMMAND)
