"""`perdure jobs launch`: reads the command line; `task_source` reads the YAML, and `sdk.jobs` uploads and submits."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import TYPE_CHECKING, Any

import click

from perdure.cli.clusters.output import message_option, print_json
from perdure.cli.completion import suggestions
from perdure.cli.errors import warn
from perdure.cli.jobs.options import ignore_option, overrides, task_options, variables
from perdure.cli.output.confirm import confirm, require_terminal_or_yes
from perdure.cli.output.progress import progress_bar, spinner

if TYPE_CHECKING:
    from perdure.cli.output.progress import Advance
    from perdure.sdk.connection.api_types import Plan
    from perdure.sdk.connection.client import Client
    from perdure.sdk.files.uploads import Archive
    from perdure.sdk.jobs import LaunchResult

MAX_PLAN_ROWS = 5
MAX_DRYRUN_ROWS = 20
MAX_JOBS = 10_000  # the controller accepts no more in one call


class LaunchCommand(click.Command):
    """Explains `--` to a user who launches a program with options of its own."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = list(args)
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            command = words[self._options_end(words) :]
            if len(command) > 1 and not command[0].startswith("-") and not command[0].endswith((".yaml", ".yml")):
                separated = shlex.join(["--", *command])
                hint = f"If it is an option of the command to run, write -- before the command: {separated}"
                raise click.UsageError(f"No such option {error.option_name!r}. {hint}", ctx) from error
            raise

    def _options_end(self, words: Sequence[str]) -> int:
        """The index of the first word that is neither an option of this command nor the value of one."""
        takes_value = {
            name: not (option.is_flag or option.count)
            for option in self.params
            if isinstance(option, click.Option)
            for name in (*option.opts, *option.secondary_opts)
        }
        at = 0
        while at < len(words) and (name := words[at].partition("=")[0]) in takes_value:
            at += 2 if takes_value[name] and "=" not in words[at] else 1
        return at


@click.command(
    cls=LaunchCommand,
    epilog="""\b
Examples:
  perdure jobs launch train.yaml
  perdure jobs launch train.yaml -n bert --env WANDB_API_KEY --env EPOCHS=3
  perdure jobs launch train.yaml --infra aws/us-east-1 --gpus A100:8 --dryrun
  perdure jobs launch --cpus 4+ 'python train.py > out.txt'     one argument: a shell script
  perdure jobs launch --gpus V100 -- python train.py --lr 1e-4  several: a program and its arguments
  generate.py | perdure jobs launch -d -y -                     YAML from stdin
  perdure jobs launch -y -o json train.yaml | jq '.job_ids[0]'

\b
Exit codes: 0 the job succeeded, 100 it failed, 101 it keeps running (you detached), 103 it was cancelled;
2 the task is invalid (nothing was changed), 1 any other error.
""",
)
@click.argument("entrypoint", nargs=-1, required=True, metavar="YAML|COMMAND...", shell_complete=suggestions.files)
@click.option("-n", "--name", help="Name of the job; by default that of the YAML.")
@task_options
@click.option(
    "--dryrun",
    is_flag=True,
    help="Show the candidates and a forecast of cost and finish time; launch nothing.",
)
@click.option(
    "--num-jobs",
    type=click.IntRange(1, MAX_JOBS),
    default=1,
    metavar="N",
    help="Launch N identical jobs, numbered by SKYPILOT_JOB_RANK.",
)
@ignore_option
@click.option("-d", "--detach-run", is_flag=True, help="Return once the job is submitted, without following its logs.")
@message_option
@click.option("-y", "--yes", is_flag=True, help="Skip confirmation.")
def launch(
    entrypoint: tuple[str, ...],
    name: str | None,
    env: tuple[str, ...],
    env_file: tuple[str, ...],
    secret: tuple[str, ...],
    secret_file: tuple[str, ...],
    dryrun: bool,
    num_jobs: int,
    ignore: tuple[str, ...],
    detach_run: bool,
    output: str,
    yes: bool,
    **resources: Any,
) -> None:
    """Run a task YAML or a command, and follow its logs.

    Shows the candidate machines and asks for confirmation; then follows the job's logs through every recovery, unless
    --num-jobs launches several, or -o json prints one document. Ctrl-C leaves the job running. Options override the
    YAML, in every task of a pipeline.
    """
    from perdure.cli.jobs.task_source import load

    changes = overrides(resources)
    envs = variables(env_file, env, option="--env")
    secrets = variables(secret_file, secret, option="--secret")
    dag = load(entrypoint, envs=envs, secrets=secrets, name=name)
    if changes:
        dag = dag.override(**changes)
    require_terminal_or_yes(yes=yes or dryrun)
    _run(
        dag, name, dryrun=dryrun, num_jobs=num_jobs, ignore=ignore, detach=detach_run, as_json=output == "json", yes=yes
    )


class _ReadCount:
    """How much has been read of the files that are packed, for the user who waits."""

    def __init__(self) -> None:
        self._size_bytes = 0

    def add(self, size_bytes: int) -> None:
        self._size_bytes += size_bytes

    def text(self) -> str:
        from perdure.sdk.files.uploads import format_size

        return f"{format_size(self._size_bytes)} read"


def _run(
    dag: Any,
    name: str | None,
    *,
    dryrun: bool,
    num_jobs: int,
    ignore: tuple[str, ...],
    detach: bool,
    as_json: bool,
    yes: bool,
) -> None:
    from perdure.cli.client import connect, outdated_config, version_mismatch
    from perdure.sdk import jobs
    from perdure.sdk.connection.client import user_name

    with ExitStack() as until_done:
        read = _ReadCount()
        with spinner("Packing files", read.text):
            job = until_done.enter_context(jobs.prepare(dag, name, ignore=ignore, on_read=read.add))
        client = connect()
        info = client.controller()
        for note in (version_mismatch(info["version"]), outdated_config(info)):
            if note:
                warn(note)
        with spinner("Forecasting cost and finish time" if dryrun else "Finding offers"):
            planned = job.plan(client, forecast=dryrun, num_jobs=num_jobs)
        count = planned.setdefault("num_jobs", num_jobs)
        warned = list(dict.fromkeys(planned["warnings"]))
        for warning in warned:
            warn(warning)
        _show(planned, dryrun=dryrun, as_json=as_json)
        if dryrun:
            return
        which = f"{count:,} jobs" + (f" named {job.name}" if job.name else "") if count > 1 else job.name or "this job"
        confirm(f"Launch {which}?", yes=yes)
        job.send(client, on_message=lambda line: click.echo(line, err=True), progress=_upload_progress)
        with spinner(f"Submitting {count:,} jobs" if count > 1 else "Submitting the job"):
            launched = job.submit(client, key=jobs.new_key(), user=user_name(), num_jobs=num_jobs)
    for warning in launched.warnings:
        if warning not in warned:
            warn(warning)
    if as_json:
        warnings = list(dict.fromkeys((*warned, *launched.warnings)))
        return print_json({"job_ids": list(launched.job_ids), "name": launched.name, "warnings": warnings})
    _report(launched, client, detach=detach)


def _show(planned: Plan, *, dryrun: bool, as_json: bool) -> None:
    """Print the plan. As JSON, it is the document of a dry run only."""
    from perdure.cli.output import plan, table

    if as_json:
        return print_json(planned) if dryrun else None
    rows = MAX_DRYRUN_ROWS if dryrun else MAX_PLAN_ROWS
    for line in plan.lines(planned, width=table.screen_width(), max_rows=rows):
        click.echo(line)
    return None


def _report(launched: LaunchResult, client: Client, *, detach: bool) -> None:
    """Name the jobs, and follow a single one. Ends the command with the exit code of that job."""
    if len(launched.job_ids) > 1:
        first, last = launched.job_ids[0], launched.job_ids[-1]
        click.echo(f"Jobs {first} to {last} ({launched.name}) submitted.")
        click.echo(f"  list:  perdure jobs sweep {first}\n  logs:  perdure jobs sweep {first} --logs")
        return
    click.echo(f"Job {launched.job_id} ({launched.name}) submitted.")
    if detach:
        click.echo(
            f"  logs:      perdure jobs logs {launched.job_id}\n  timeline:  perdure jobs show {launched.job_id}"
        )
        return
    from perdure.cli.jobs.follow import follow

    raise SystemExit(follow(client, launched.job_id))


def _upload_progress(archive: Archive) -> AbstractContextManager[Advance]:
    return progress_bar("Uploading", archive.size_bytes)
