"""The `perdure` command: its groups, its version, and how its errors look."""

from __future__ import annotations

import os
from typing import Any

import click

from perdure.cli import start
from perdure.cli.lazy import Lazy, LazyGroup

COMMANDS = {
    "jobs": Lazy("perdure.cli.jobs:jobs", "Launch jobs, watch them, read their logs, cancel them."),
    "check": Lazy("perdure.cli.check:check", "Which clouds can be used, and why the others can not."),
    "gpus": Lazy("perdure.cli.gpus:gpus", "What accelerators can be had, where, and for how much."),
    "controller": Lazy("perdure.cli.controller:controller", "Start, stop and look at the controller."),
    "simulate": Lazy(
        "perdure.cli.simulate:simulate", "Which recovery policy would have cost what, on recorded markets."
    ),
    "completion": Lazy("perdure.cli.completion:completion", "Tab completion for bash, zsh or fish."),
}


class Perdure(LazyGroup):
    """The top of the command line: every error of a command below ends here, as a line and an exit code, and so does a
    Ctrl-C for which the command has no answer."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            start.raise_again()
            return super().invoke(ctx)
        except KeyboardInterrupt:
            start.end_line()
            raise click.exceptions.Exit(start.EXIT_INTERRUPTED) from None
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except Exception as error:
            if os.environ.get("PERDURE_DEBUG") == "1":
                raise
            from perdure.cli.errors import Failure

            raise Failure.of(error) from error


def _print_version(ctx: click.Context, _: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from perdure.cli.version import own_version

        click.echo(f"perdure {own_version()}")
        ctx.exit()


@click.group(
    cls=Perdure,
    commands_at=COMMANDS,
    epilog="""\b
Examples:
  perdure jobs launch train.yaml         run a task, and follow its log through every recovery
  perdure jobs launch --gpus A100:8 -- python train.py --lr 3e-4
  perdure jobs queue --watch             what runs, where, and what it cost so far
  perdure jobs show 7                    why job 7 moved, and when
""",
)
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_print_version, help="Show the version."
)
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Run training jobs on preemptible machines, and finish them.

    A controller of your own starts by itself on first use. To use one that runs elsewhere, set PERDURE_ENDPOINT and
    PERDURE_TOKEN. PERDURE_DEBUG=1 shows where an error came from.
    """
    if os.environ.get("NO_COLOR"):
        ctx.color = False


def main() -> None:
    """Runs the command that the words of this process are."""
    cli(prog_name="perdure")
