"""`perdure launch` and `perdure exec`."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import click

from perdure.cli.clusters.follow import follow
from perdure.cli.clusters.lifecycle import idle_below_option, refuse_without_autostop, wait_for_option
from perdure.cli.clusters.names import update_ssh_hosts
from perdure.cli.clusters.output import message_option, print_json, print_launched
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

_USER_INFO = re.compile(r"(?<=://)[^/@\s]*@")


@click.command(
    cls=LaunchCommand,
    epilog="""\b
Examples:
  perdure launch -c dev train.yaml              machines named dev, and train.yaml as its first job
  perdure launch -c dev --gpus A100:8           only the machines; then: perdure exec dev ...
  perdure launch -c dev -i 10 --down train.yaml end the machines once they were idle for 10 minutes
  perdure launch -c dev -d train.yaml           return at once; then: perdure logs dev
  perdure launch -c dev -y -o json train.yaml | jq .job.number

\b
With -o json it follows no logs: it prints one document once the cluster is up, and with -d at once.

\b
Exit codes: 0 the job succeeded, 100 it failed, 101 it keeps running (you detached), 103 it was cancelled;
2 the task is invalid (nothing was changed), 1 any other error.
""",
)
@click.argument("entrypoint", nargs=-1, metavar="[YAML|COMMAND]...", shell_complete=suggestions.files)
@click.option("-c", "--cluster", metavar="NAME", help="Name of the cluster; a new one by default.")
@click.option("-n", "--name", help="Name of the job; by default that of the YAML.")
@task_options
@ignore_option
@click.option("--dryrun", is_flag=True, help="Show the candidate machines; launch nothing.")
@click.option("-d", "--detach-run", is_flag=True, help="Return once the job is submitted, without following its logs.")
@click.option(
    "-i",
    "--idle-minutes-to-autostop",
    "idle_minutes",
    type=click.IntRange(min=0),
    metavar="MINUTES",
    help="Stop the machines once they were idle for so long.",
)
@wait_for_option
@idle_below_option
@click.option(
    "--down", is_flag=True, help="End the cluster instead of stopping it; without -i, once its jobs have ended."
)
@click.option("--no-setup", is_flag=True, help="Leave out `setup`.")
@click.option("--fast", is_flag=True, help="Leave out `setup` if the cluster exists.")
@click.option("--recover", is_flag=True, help="Launch other machines when some are lost; jobs then start again.")
@click.option("--max-duration", metavar="TIME", help="End the job after running for so long: 90s, 30m, 12h.")
@click.option("-r", "--retry-until-up", is_flag=True, hidden=True)
@click.option("--async/--no-async", "asynchronous", default=False, hidden=True)
@message_option
@click.option("-y", "--yes", is_flag=True, help="Skip confirmation.")
def launch(
    entrypoint: tuple[str, ...],
    cluster: str | None,
    name: str | None,
    env: tuple[str, ...],
    env_file: tuple[str, ...],
    secret: tuple[str, ...],
    secret_file: tuple[str, ...],
    ignore: tuple[str, ...],
    dryrun: bool,
    detach_run: bool,
    idle_minutes: int | None,
    wait_for: Any,
    idle_below: float | None,
    down: bool,
    no_setup: bool,
    fast: bool,
    recover: bool,
    max_duration: str | None,
    retry_until_up: bool,  # noqa: ARG001 - a cluster waits for machines anyway
    asynchronous: bool,
    output: str,
    yes: bool,
    **resources: Any,
) -> None:
    """Launch a task on machines that stay, on a new cluster or on the one of that name.

    On an existing cluster, the task is queued behind its other jobs. Ctrl-C leaves the job running.
    """
    from perdure.cli.client import connect
    from perdure.sdk import clusters

    limit_s = _seconds(max_duration)
    if idle_minutes is None and not down:
        refuse_without_autostop(wait_for, idle_below, "give -i or --down, too")
    dag = _load(entrypoint or ("true",), name, (env, env_file, secret, secret_file), resources, ignore)
    require_terminal_or_yes(yes=yes or dryrun)
    client = connect()
    existing = clusters.clusters([cluster], client=client) if cluster else []
    if dryrun or (not existing and output == "text"):
        _show_plan(dag, client, as_json=output == "json")
    if dryrun:
        return
    what = f"Run on the cluster {cluster}?" if existing else f"Launch a new cluster{f' {cluster}' if cluster else ''}?"
    confirm(what, yes=yes)
    idle_s = 60.0 * idle_minutes if idle_minutes is not None else 0.0 if down else None
    with spinner("Submitting"):
        launched = clusters.launch_job(
            dag,
            cluster,
            idle_s=idle_s,
            down=down,
            wait_for=wait_for,
            idle_below=idle_below,
            setup=not (no_setup or (fast and existing)),
            job=bool(entrypoint),
            recover=recover,
            limit_s=limit_s,
            command=" ".join(["perdure launch", *without_secrets(sys.argv[2:])])[:2000],
            client=client,
        )
    for warning in launched.warnings:
        warn(warning)
    if output == "text":
        click.echo(f"Cluster: {launched.cluster_name}")
    update_ssh_hosts(client, is_launch=True)
    returns_at_once = asynchronous or (detach_run and launched.number is not None)
    if not returns_at_once:
        _wait_up(launched, client)
    if output == "json":
        return print_launched(client, launched)
    if returns_at_once or launched.number is None:
        return _report(launched.cluster_name, launched.number)
    _follow(client, launched)


@click.command(
    "exec",
    cls=LaunchCommand,
    epilog="""\b
Examples:
  perdure exec dev train.yaml
  perdure exec dev --gpus V100:0.5 -- python train.py --lr 1e-4
  perdure exec dev -d sweep.yaml --env LR=3e-4      queue it and return
  perdure exec dev -o json eval.yaml | jq .job.number   queue it and print one document

\b
Exit codes: as for `perdure launch`.
""",
)
@click.argument("words", nargs=-1, required=True, metavar="CLUSTER YAML|COMMAND...")
@click.option("-c", "--cluster", metavar="NAME", help="Name of the cluster, instead of the first argument.")
@click.option("-n", "--name", help="Name of the job; by default that of the YAML.")
@task_options
@ignore_option
@click.option("-d", "--detach-run", is_flag=True, help="Return once the job is queued, without following its logs.")
@click.option("--max-duration", metavar="TIME", help="End the job after running for so long: 90s, 30m, 12h.")
@click.option("--async/--no-async", "asynchronous", default=False, hidden=True)
@message_option
@click.option("-y", "--yes", is_flag=True, hidden=True)
def execute(
    words: tuple[str, ...],
    cluster: str | None,
    name: str | None,
    env: tuple[str, ...],
    env_file: tuple[str, ...],
    secret: tuple[str, ...],
    secret_file: tuple[str, ...],
    ignore: tuple[str, ...],
    detach_run: bool,
    max_duration: str | None,
    asynchronous: bool,
    output: str,
    yes: bool,  # noqa: ARG001 - it asks nothing
    **resources: Any,
) -> None:
    """Run a task on a cluster that is up: no new machines, no `setup`, no `file_mounts`.

    The job starts when the cluster has room for its --cpus, --memory and --gpus, in the order of the queue. Each job
    gets a snapshot of the workdir.
    """
    from perdure.cli.client import connect
    from perdure.sdk import clusters

    if cluster is None:
        cluster, *rest = words
        words = tuple(rest)
    if not words:
        raise Failure("say what to run\n  perdure exec CLUSTER YAML|COMMAND...", EXIT_WRONG_INPUT)
    limit_s = _seconds(max_duration)
    dag = _load(words, name, (env, env_file, secret, secret_file), resources, ignore)
    client = connect()
    queued = clusters.exec_job(dag, cluster, limit_s=limit_s, client=client)
    for warning in queued.warnings:
        warn(warning)
    if output == "json":
        return print_launched(client, queued)
    if detach_run or asynchronous:
        return _report(cluster, queued.number)
    click.echo(f"Job submitted, ID: {queued.number}", err=True)
    _follow(client, queued)


def _load(
    words: tuple[str, ...],
    name: str | None,
    given: tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...], tuple[str, ...]],
    resources: dict[str, Any],
    ignore: tuple[str, ...],
) -> Dag:
    from perdure.cli.jobs.task_source import load

    env, env_file, secret, secret_file = given
    changes = overrides(resources)
    envs = variables(env_file, env, option="--env")
    secrets = variables(secret_file, secret, option="--secret")
    dag = load(words, envs=envs, secrets=secrets, name=name)
    if len(dag.tasks) != 1:
        raise Failure("a cluster runs single tasks\n  for a pipeline: perdure jobs launch", EXIT_WRONG_INPUT)
    return (dag.override(**changes) if changes else dag).ignoring(ignore)


def _show_plan(dag: Dag, client: Client, *, as_json: bool) -> None:
    from perdure.cli.jobs.launch import MAX_PLAN_ROWS
    from perdure.cli.output import plan, table
    from perdure.sdk import jobs

    with jobs.prepare(dag) as prepared, spinner("Finding offers"):
        planned = prepared.plan(client)
    if as_json:
        return print_json(planned)
    for line in plan.lines(planned, width=table.screen_width(), max_rows=MAX_PLAN_ROWS):
        click.echo(line)


def _wait_up(launched: Any, client: Client) -> None:
    from perdure.sdk import clusters

    try:
        with _launching():
            clusters.wait_up(launched, lambda line: click.echo(line, err=True), client=client)
    except clusters.ClusterNotUp as error:
        raise Failure(str(error)) from error
    except KeyboardInterrupt:
        name = launched.cluster_name
        click.echo(
            f"\nDetached; the cluster {name} is still being launched.\n"
            f"  status:  perdure status {name}\n"
            f"  end it:  perdure down {name}",
            err=True,
        )
        raise SystemExit(EXIT_NOT_FINISHED) from None


def _launching() -> AbstractContextManager[None]:
    return spinner("Launching the cluster")


def _follow(client: Client, launched: Any) -> None:
    raise SystemExit(follow(client, launched.cluster_name, launched.number, launched.job_id))


def _report(cluster: str, number: int | None) -> None:
    if number is None:
        click.echo(f"  run:     perdure exec {cluster} COMMAND\n  end it:  perdure down {cluster}")
        return
    click.echo(f"Job submitted, ID: {number}")
    click.echo(
        f"  logs:    perdure logs {cluster} {number}\n"
        f"  queue:   perdure queue {cluster}\n"
        f"  cancel:  perdure cancel {cluster} {number}"
    )


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    from perdure.sdk.spec.values import deadlines

    try:
        return float(deadlines.seconds(text))
    except ValueError as error:
        raise Failure(f"--max-duration: {error}", EXIT_WRONG_INPUT) from error


def without_secrets(words: Sequence[str]) -> list[str]:
    """A command's arguments without the values of `--secret` and the credentials of URLs: all users can see them."""
    shown = []
    for before, word in zip(["", *words], words, strict=False):
        option, mark, given = ("--secret", "", word) if before == "--secret" else word.partition("=")
        if option == "--secret":
            name, equals, _ = given.partition("=")
            word = f"{option if mark else ''}{mark}{name}{equals and '=***'}" if given else word
        shown.append(_USER_INFO.sub("***@", word))
    return shown
