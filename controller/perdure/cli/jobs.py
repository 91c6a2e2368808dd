"""`perdure jobs`: the group of commands about jobs."""

from __future__ import annotations

import click

from perdure.cli.lazy import Lazy, LazyGroup

COMMANDS = {
    "launch": Lazy("perdure.cli.launch:launch", "Run a task YAML or a command, and follow it to its end."),
    "queue": Lazy("perdure.cli.queue:queue", "List jobs: status, place, recoveries, cost."),
    "show": Lazy("perdure.cli.show:show", "One job's attempts and timeline: what happened, and why."),
    "logs": Lazy("perdure.cli.logs:logs", "A job's log, followed through recoveries."),
    "cancel": Lazy("perdure.cli.cancel:cancel", "End jobs; they may save their work first."),
    "preempt": Lazy("perdure.cli.preempt:preempt", "Rehearse an interruption: take a job's machine away."),
}


@click.group(
    cls=LazyGroup,
    commands_at=COMMANDS,
    epilog="""\b
Examples:
  perdure jobs launch train.yaml -n bert
  perdure jobs queue
  perdure jobs logs 3
  perdure jobs cancel 3
""",
)
def jobs() -> None:
    """Launch jobs, watch them, read their logs, cancel them."""
