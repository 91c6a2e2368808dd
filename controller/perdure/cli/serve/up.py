"""`perdure serve up` and `perdure serve update`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from perdure.cli.completion import suggestions
from perdure.cli.errors import EXIT_WRONG_INPUT, Failure, warn
from perdure.cli.jobs.launch import LaunchCommand
from perdure.cli.jobs.options import ignore_option, overrides, task_options, variables
from perdure.cli.output.confirm import confirm, require_terminal_or_yes
from perdure.cli.output.progress import spinner
from perdure.recovery.statuses import EXIT_NOT_FINISHED

if TYPE_CHECKING:
    from perdure.sdk.connection.client import Client
    from perdure.sdk.dag import Dag
    from perdure.sdk.serve import types

_WAIT = click.option("--wait/--no-wait", default=False, help="Wait until a replica is ready.")
_ASYNC = click.option("--async/--no-async", "asynchronous", default=False, hidden=True)


@click.command(
    cls=LaunchCommand,
    epilog="""\b
Examples:
  perdure serve up -n mymodel service.yaml
  perdure serve up -n mymodel service.yaml --env-file .env --wait
  perdure serve up service.yaml --no-auth         everybody who reaches the endpoint may call it

\b
A service.yaml:
  service:
    readiness_probe: /v1/models
    replicas: 2
  resources: {ports: 8080}
  run: python -m my.server --port 8080
""",
)
@click.argument("yaml", nargs=-1, required=True, metavar="YAML", shell_complete=suggestions.files)
@click.option("-n", "--service-name", "--name", "name", help="Name of the service; sky-service-XXXX by default.")
@task_options
@ignore_option
@click.option("--no-auth", is_flag=True, help="Let everybody call the endpoint, without a token.")
@_WAIT
@click.option("-y", "--yes", is_flag=True, help="Skip confirmation.")
@_ASYNC
def up(
    yaml: tuple[str, ...],
    name: str | None,
    env: tuple[str, ...],
    env_file: tuple[str, ...],
    secret: tuple[str, ...],
    secret_file: tuple[str, ...],
    ignore: tuple[str, ...],
    no_auth: bool,
    wait: bool,
    yes: bool,
    asynchronous: bool,  # noqa: ARG001 - it returns at once anyway
    **resources: Any,
) -> None:
    """Start a service: replicas of a program behind one endpoint.

    Prints the endpoint and the token that callers send as `Authorization: Bearer TOKEN`. Returns before a replica is
    ready; requests are held until then.
    """
    from perdure.cli.client import connect
    from perdure.sdk import serve

    dag = _load(yaml, (env, env_file, secret, secret_file), resources, ignore)
    require_terminal_or_yes(yes=yes)
    client = connect()
    confirm(f"Start the service{f' {name}' if name else ''}?", yes=yes)
    with spinner("Starting the service"):
        started = serve.up(dag, name, auth=not no_auth, client=client, on_message=_message)
    _report(started, "started")
    if wait:
        _wait_ready(started["name"], client)


@click.command(
    cls=LaunchCommand,
    epilog="""\b
Examples:
  perdure serve update mymodel service.yaml
  perdure serve update mymodel service.yaml --mode blue_green
""",
)
@click.argument("name", shell_complete=suggestions.services)
@click.argument("yaml", nargs=-1, required=True, metavar="YAML", shell_complete=suggestions.files)
@task_options
@ignore_option
@click.option(
    "--mode",
    type=click.Choice(["rolling", "blue_green"]),
    default="rolling",
    show_default=True,
    help="One replica after the other, or all at once when enough new ones are ready.",
)
@click.option("-y", "--yes", is_flag=True, help="Skip confirmation.")
@_ASYNC
def update(
    name: str,
    yaml: tuple[str, ...],
    env: tuple[str, ...],
    env_file: tuple[str, ...],
    secret: tuple[str, ...],
    secret_file: tuple[str, ...],
    ignore: tuple[str, ...],
    mode: Any,
    yes: bool,
    asynchronous: bool,  # noqa: ARG001 - it returns at once anyway
    **resources: Any,
) -> None:
    """Replace the replicas of a service by those of another YAML. The endpoint and its token stay.

    If no replica of the new version gets ready, those of the earlier version go on.
    """
    from perdure.cli.client import connect
    from perdure.sdk import serve

    dag = _load(yaml, (env, env_file, secret, secret_file), resources, ignore)
    require_terminal_or_yes(yes=yes)
    client = connect()
    confirm(f"Update the service {name}?", yes=yes)
    with spinner("Updating the service"):
        started = serve.update(dag, name, mode=mode, client=client, on_message=_message)
    _report(started, f"is being updated to version {started['version']}")


def _load(
    words: tuple[str, ...],
    given: tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...], tuple[str, ...]],
    resources: dict[str, Any],
    ignore: tuple[str, ...],
) -> Dag:
    from perdure.cli.jobs.task_source import is_yaml, load

    if len(words) != 1 or not (words[0] == "-" or is_yaml(words[0])):
        raise Failure("give the YAML file of the service", EXIT_WRONG_INPUT)
    env, env_file, secret, secret_file = given
    changes = overrides(resources)
    envs = variables(env_file, env, option="--env")
    secrets = variables(secret_file, secret, option="--secret")
    dag = load(words, envs=envs, secrets=secrets, name=None)
    if len(dag.tasks) != 1:
        raise Failure("a service is a single task", EXIT_WRONG_INPUT)
    return (dag.override(**changes) if changes else dag).ignoring(ignore)


def _message(line: str) -> None:
    click.echo(line, err=True)


def _report(started: types.StartedService, what: str) -> None:
    for warning in started["warnings"]:
        warn(warning)
    name, token = started["name"], started["token"]
    click.echo(f"Service {name} {what}.")
    click.echo(f"  endpoint:  {started['endpoint']}")
    if token:
        click.echo(f"  token:     {token}")
    click.echo(f"  status:    perdure serve status {name}\n  logs:      perdure serve logs {name} REPLICA_ID")
    header = f" -H 'Authorization: Bearer {token}'" if token else ""
    click.echo(f"  call it:   curl{header} {started['endpoint']}/")
    click.echo(f"  end it:    perdure serve down {name}")


def _wait_ready(name: str, client: Client) -> None:
    from perdure.sdk import serve

    try:
        with spinner("Waiting for a replica"):
            serve.wait_ready(name, client=client)
    except serve.ServiceNotReady as error:
        raise Failure(f"{error}\n  logs: perdure serve logs {name} REPLICA_ID") from error
    except KeyboardInterrupt:
        click.echo(f"\nDetached; the service {name} is still being started.", err=True)
        raise SystemExit(EXIT_NOT_FINISHED) from None
    click.echo(f"Service {name} is ready.")
