"""`holdfast jobs`: the group of commands about jobs."""

from __future__ import annotations

import click

from holdfast.cli.lazy import Lazy, LazyGroup

COMMANDS = {
    "launch": Lazy("holdfast.cli.launch:launch", "Run a task YAML or a command, and follow it to its end."),
    "queue": Lazy("holdfast.cli.queue:queue", "List jobs: status, place, recoveries, cost."),
    "show": Lazy("holdfast.cli.show:show", "One job's attempts and timeline: what happened, and why."),
    "logs": Lazy("holdfast.cli.logs:logs", "A job's log, followed through recoveries."),
    "cancel": Lazy("holdfast.cli.cancel:cancel", "End jobs; they may save their work first."),
    "preempt": Lazy("holdfast.cli.preempt:preempt", "Rehearse an interruption: take a job's machine away."),
}


@click.group(
    cls=LazyGroup,
    commands_at=COMMANDS,
    epilog="""\b
Examples:
  holdfast jobs launch train.yaml -n bert
  holdfast jobs queue
  holdfast jobs logs 3
  holdfast jobs cancel 3
""",
)
def jobs() -> None:
    """Launch jobs, watch them, read their logs, cancel them."""
