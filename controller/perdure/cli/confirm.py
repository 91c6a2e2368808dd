"""Asking before something that can not be taken back."""

from __future__ import annotations

import sys

import click

from perdure.cli.errors import EXIT_WRONG_INPUT, Failure


def require_terminal(*, yes: bool) -> None:
    """Refuse early where there is nobody to ask."""
    if not yes and not sys.stdin.isatty():
        raise Failure("there is no terminal to ask on\n  add -y to go on without being asked", EXIT_WRONG_INPUT)


def ask(question: str, *, yes: bool, default: bool = True) -> None:
    """Go on only if the user agrees."""
    require_terminal(yes=yes)
    if not yes and not click.confirm(question, default=default):
        raise Failure("nothing was changed")
