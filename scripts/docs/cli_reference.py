"""The page of every command and option, from click itself: the texts are those of `--help`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click

from perdure.cli.main import cli as perdure

_INTRO = """# Command line

Every command, with the words of its `--help`. They end with one of these exit codes:

| code | meaning |
|---|---|
| 0 | success; of `jobs launch` and `jobs logs` that wait for a job: it succeeded |
| 1 | failure; of `check`: no cloud is usable, or one that was named is not |
| 2 | wrong usage or an invalid task; nothing was changed |
| 100 | the job failed |
| 101 | the job has not ended: `jobs logs --no-follow`, or Ctrl-C while following a log |
| 102 | there is no such job |
| 103 | the job was cancelled |
| 130 | Ctrl-C, except while following a log (101; of `controller logs`: 0) or watching the queue (0) |
"""
_WIDTH = 100  # of the lines that show the usage, whatever the terminal's is


def page() -> str:
    lines = [_INTRO]
    context = _context(perdure, "perdure")
    lines += _command(context)
    return "\n".join(lines) + "\n"


def _context(command: click.Command, name: str, parent: click.Context | None = None) -> click.Context:
    """A context as click makes it for a call: a command keeps the help option of the first one that it sees."""
    return click.Context(command, info_name=name, parent=parent, terminal_width=_WIDTH, **command.context_settings)


def _command(context: click.Context) -> Iterator[str]:
    command = context.command
    depth = min(context.command_path.count(" ") + 2, 4)
    yield f"{'#' * depth} `{context.command_path}`"
    yield ""
    if command.help:
        yield inspect.cleandoc(command.help.split("\f")[0])
        yield ""
    yield "```text"
    yield command.get_usage(context).removeprefix("Usage: ")
    yield "```"
    yield ""
    options = [
        record
        for one in command.get_params(context)
        if isinstance(one, click.Option) and (record := one.get_help_record(context)) is not None
    ]
    if options:
        yield "| option | meaning |"
        yield "|---|---|"
        for name, meaning in options:
            shown = _cell(meaning).replace("<", "&lt;").replace("[", "&#91;")  # not HTML, not a link
            yield f"| {_code(name)} | {shown} |"
        yield ""
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            if child is not None and not child.hidden:
                yield from _command(_context(child, name, context))


def _code(text: str) -> str:
    """Code in a cell of a table: an escaped pipe in backquotes would show its backslash."""
    return f"<code>{text.replace('<', '&lt;').replace('|', '&#124;')}</code>" if "|" in text else f"`{text}`"


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")
