"""Command groups whose commands are imported only when they run, so that `perdure --help` is instant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import click

CONTEXT: dict[str, Any] = {"help_option_names": ["-h", "--help"], "max_content_width": 100}


@dataclass(frozen=True)
class LazyCommand:
    """Where a command is defined (`module:name`), and its line in the help of its group."""

    target: str
    short_help: str


class LazyGroup(click.Group):
    """A group that knows the names of its commands, and imports a command on first use."""

    def __init__(
        self,
        *args: Any,
        commands_at: Mapping[str, LazyCommand],
        elsewhere: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        """`elsewhere`: commands of SkyPilot that this group does not have, and what to do instead."""
        super().__init__(*args, context_settings=CONTEXT, **kwargs)
        self.commands_at = commands_at
        self.elsewhere = elsewhere or {}

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(self.commands_at)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in self.commands_at:
            return None
        module, _, name = self.commands_at[cmd_name].target.partition(":")
        command = getattr(import_module(module), name)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] in self.elsewhere:
            ctx.fail(f"There is no command {args[0]!r}: {self.elsewhere[args[0]]}")
        if args and not args[0].startswith("-") and args[0] not in self.commands_at:
            from difflib import get_close_matches

            similar = get_close_matches(args[0], self.commands_at, n=1)
            hint = f" Did you mean {similar[0]!r}?" if similar else ""
            ctx.fail(f"No such command {args[0]!r}.{hint}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, lazy.short_help) for name, lazy in self.commands_at.items()])
