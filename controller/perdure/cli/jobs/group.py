"""`perdure jobs`: the group of commands for jobs."""

from __future__ import annotations

import click

from perdure.cli.lazy import LazyCommand, LazyGroup

COMMANDS = {
    "launch": LazyCommand("perdure.cli.jobs.launch:launch", "Run a task YAML or a command, and follow its logs."),
    "queue": LazyCommand("perdure.cli.jobs.queue:queue", "List jobs with status, place, recoveries and cost."),
    "show": LazyCommand("perdure.cli.jobs.show:show", "Show a job's attempts and timeline: what happened, and why."),
    "why": LazyCommand("perdure.cli.jobs.show:why", "Say in one sentence what a job waits for."),
    "logs": LazyCommand("perdure.cli.jobs.logs:logs", "Show a job's logs, and follow them through recoveries."),
    "cancel": LazyCommand("perdure.cli.jobs.cancel:cancel", "Cancel jobs; they may save their work first."),
    "sweep": LazyCommand("perdure.cli.jobs.sweep:sweep", "Show jobs that were launched together, and act on all."),
    "schedule": LazyCommand("perdure.cli.jobs.schedule:schedule", "Launch a job again and again, as cron does."),
    "exec": LazyCommand("perdure.cli.jobs.enter.exec_command:exec_command", "Run a command on a machine of a job."),
    "ssh": LazyCommand("perdure.cli.jobs.enter.ssh:ssh", "Open an ssh session on a machine."),
    "preempt": LazyCommand("perdure.cli.jobs.preempt:preempt", "Simulate a preemption of one of a job's machines."),
}
# Commands of SkyPilot, and what to do here instead.
ELSEWHERE = {
    "dashboard": "use `perdure dashboard`, or `perdure jobs queue --watch`",
    "pool": "pools are not supported; `perdure jobs launch --num-jobs N` launches N jobs",
    "status": "use `perdure jobs queue`, or `perdure jobs show` for one job",
    "list": "use `perdure jobs queue`",
}


@click.group(
    cls=LazyGroup,
    commands_at=COMMANDS,
    elsewhere=ELSEWHERE,
    epilog="""\b
Examples:
  perdure jobs launch train.yaml -n bert
  perdure jobs queue
  perdure jobs logs 3
  perdure jobs cancel 3
""",
)
def jobs() -> None:
    """Launch, list, inspect and cancel jobs."""
