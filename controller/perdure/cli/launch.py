"""`perdure jobs launch`."""

from __future__ import annotations

from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Any

import click

from perdure.cli.confirm import ask, require_terminal
from perdure.cli.errors import warn
from perdure.cli.options import overrides, task_options, variables
from perdure.cli.progress import counting, working

if TYPE_CHECKING:
    from perdure.cli.progress import Count
    from perdure.sdk.uploads import Archive

PLAN_ROWS = 5
DRYRUN_ROWS = 20
MOST_JOBS = 10_000  # what the controller takes in one call


@click.command(
    epilog="""\b
Examples:
  perdure jobs launch train.yaml
  perdure jobs launch train.yaml -n bert --env WANDB_API_KEY --env EPOCHS=3
  perdure jobs launch train.yaml --infra aws/us-east-1 --gpus A100:8 --dryrun
  perdure jobs launch --cpus 4+ 'python train.py > out.txt'     one word: a shell script
  perdure jobs launch --gpus V100 -- python train.py --lr 1e-4  several: a program and its arguments
  generate.py | perdure jobs launch -d -y -                     YAML from stdin

\b
Exit codes: 0 the job succeeded, 100 it failed, 101 it goes on (you detached), 103 it was cancelled;
2 the task is wrong (nothing was changed), 1 anything else.
""",
)
@click.argument("entrypoint", nargs=-1, required=True, metavar="YAML|COMMAND...")
@click.option("-n", "--name", help="The job's name; by default that of the YAML.")
@task_options
@click.option(
    "--dryrun",
    is_flag=True,
    help="Show what would be tried, and what it will cost and when it will be done, and stop there.",
)
@click.option(
    "--num-jobs",
    type=click.IntRange(1, MOST_JOBS),
    default=1,
    help="So many jobs alike, told apart by SKYPILOT_JOB_RANK.",
)
@click.option("-d", "--detach-run", is_flag=True, help="Return once the job is submitted.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def launch(
    entrypoint: tuple[str, ...],
    name: str | None,
    env: tuple[str, ...],
    env_file: tuple[str, ...],
    secret: tuple[str, ...],
    secret_file: tuple[str, ...],
    dryrun: bool,
    num_jobs: int,
    detach_run: bool,
    yes: bool,
    **resources: Any,
) -> None:
    """Run a task YAML, or a command, to its end.

    Shows what would be tried and asks; then follows the job's log through every recovery, unless there are several.
    Ctrl-C leaves the job running. Options change what the YAML says, in every task of a pipeline.
    """
    from perdure.cli.entrypoint import load

    changes = overrides(resources)
    envs = variables(env_file, env, option="--env")
    secrets = variables(secret_file, secret, option="--secret")
    dag = load(entrypoint, envs=envs, secrets=secrets, name=name)
    if changes:
        dag = dag.override(**changes)
    require_terminal(yes=yes or dryrun)
    _run(dag, name, dryrun=dryrun, num_jobs=num_jobs, detach=detach_run, yes=yes)


def _run(dag: Any, name: str | None, *, dryrun: bool, num_jobs: int, detach: bool, yes: bool) -> None:
    from perdure.cli import connect, plan, table
    from perdure.cli.version import mismatch
    from perdure.sdk import jobs
    from perdure.sdk.client import user_name

    with ExitStack() as until_done:
        with working("Packing files"):
            job = until_done.enter_context(jobs.prepared(dag, name))
        client = connect.to_controller()
        if note := mismatch(client.controller()["version"]):
            warn(note)
        with working("Foreseeing cost and end" if dryrun else "Looking for offers"):
            planned = job.plan(client, forecast=dryrun)
        warned = list(dict.fromkeys([*job.warnings, *planned["warnings"]]))
        for warning in warned:
            warn(warning)
        rows = DRYRUN_ROWS if dryrun else PLAN_ROWS
        for line in plan.lines(planned, width=table.screen_width(), at_most=rows):
            click.echo(line)
        if dryrun:
            return
        which = job.name or ("this job" if num_jobs == 1 else "the job")
        ask(f"Launch {which}{f', {num_jobs} times' if num_jobs > 1 else ''}?", yes=yes)
        job.send(client, say=lambda line: click.echo(line, err=True), sending=_sending)
        with working(f"Submitting {num_jobs} jobs" if num_jobs > 1 else "Submitting the job"):
            launched = job.submit(client, key=jobs.new_key(), user=user_name(), num_jobs=num_jobs)
    for warning in launched.warnings:
        if warning not in warned:
            warn(warning)
    if num_jobs > 1:
        first, last = launched.job_ids[0], launched.job_ids[-1]
        click.echo(f"{num_jobs} jobs ({launched.name}) are submitted, {first} to {last}.")
        click.echo(f"  all of them:  perdure jobs queue -n {launched.name}\n  one's log:    perdure jobs logs {first}")
        return
    click.echo(f"Job {launched.job_id} ({launched.name}) is submitted.")
    if detach:
        click.echo(
            f"  its log:    perdure jobs logs {launched.job_id}\n  its story:  perdure jobs show {launched.job_id}"
        )
        return
    from perdure.cli.following import follow

    raise SystemExit(follow(client, launched.job_id))


def _sending(archive: Archive) -> AbstractContextManager[Count]:
    return counting("Uploading", archive.size_bytes)
