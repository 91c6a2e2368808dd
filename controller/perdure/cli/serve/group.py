"""`perdure serve`: the group of commands for services."""

from __future__ import annotations

import click

from perdure.cli.lazy import LazyCommand, LazyGroup

COMMANDS = {
    "up": LazyCommand("perdure.cli.serve.up:up", "Start a service from a task YAML with a `service` section."),
    "status": LazyCommand("perdure.cli.serve.status:status", "List services and their replicas."),
    "logs": LazyCommand("perdure.cli.serve.logs:logs", "Show the logs of a replica, or of the proxy."),
    "update": LazyCommand("perdure.cli.serve.up:update", "Replace the replicas of a service by a new version."),
    "down": LazyCommand("perdure.cli.serve.down:down", "End services."),
    "terminate-replica": LazyCommand(
        "perdure.cli.serve.down:terminate_replica", "End one replica; another one takes its place."
    ),
}


@click.group(
    cls=LazyGroup,
    commands_at=COMMANDS,
    epilog="""\b
Examples:
  perdure serve up -n mymodel service.yaml
  perdure serve status mymodel
  perdure serve logs mymodel 1
  perdure serve down mymodel
""",
)
def serve() -> None:
    """Start, list, update and end services.

    A service keeps replicas of a program running, and sends each request of its endpoint to one of them.
    """
