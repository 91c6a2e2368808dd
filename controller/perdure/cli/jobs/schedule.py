"""`perdure jobs schedule`: jobs that the controller launches again and again."""

from __future__ import annotations

from typing import Any

import click

from perdure.cli.clusters.output import message_option, output_option, print_json
from perdure.cli.errors import EXIT_WRONG_INPUT, Failure, warn
from perdure.cli.jobs.launch import LaunchCommand
from perdure.cli.jobs.options import ignore_option, overrides, task_options, variables
from perdure.cli.output import table, text
from perdure.cli.output.confirm import confirm
from perdure.cli.output.table import Column

COLUMNS = (
    Column("NAME", min_width=8),
    Column("CRON"),
    Column("TIME ZONE", drop_rank=2),
    Column("NEXT"),
    Column("LAST DUE", drop_rank=3),
    Column("LAST JOB", right=True),
    Column("RESULT", min_width=10, drop_rank=1),
)


@click.group(
    epilog="""\b
Examples:
  perdure jobs schedule set nightly '0 3 * * *' train.yaml --time-zone Europe/Berlin
  perdure jobs schedule ls
  perdure jobs schedule pause nightly
  perdure jobs queue -n nightly          the jobs that it has launched
""",
)
def schedule() -> None:
    """Have the controller launch a job again and again, at the times of a cron expression."""


@schedule.command(
    "set",
    cls=LaunchCommand,
    epilog="""\b
Examples:
  perdure jobs schedule set nightly '0 3 * * *' train.yaml --time-zone Europe/Berlin
  perdure jobs schedule set check '*/10 * * * *' --cpus 1 -- python check.py
  perdure jobs schedule set report '0 8 * * 1-5' --missed skip report.yaml

\b
Fields of CRON: minute, hour, day of the month, month, day of the week (0 and 7: Sunday).
""",
)
@click.argument("name")
@click.argument("cron")
@click.argument("entrypoint", nargs=-1, required=True, metavar="YAML|COMMAND...")
@click.option("--time-zone", metavar="ZONE", default="UTC", show_default=True, help="As in Europe/Berlin.")
@click.option(
    "--missed",
    type=click.Choice(["once", "skip"]),
    default="once",
    show_default=True,
    help="Make up for one of the runs that were due while no controller worked, or for none.",
)
@click.option("--overlap", is_flag=True, help="Launch although the job of the time before has not ended.")
@task_options
@ignore_option
@message_option
def set_schedule(
    name: str,
    cron: str,
    entrypoint: tuple[str, ...],
    time_zone: str,
    missed: Any,
    overlap: bool,
    env: tuple[str, ...],
    env_file: tuple[str, ...],
    secret: tuple[str, ...],
    secret_file: tuple[str, ...],
    ignore: tuple[str, ...],
    output: str,
    **resources: Any,
) -> None:
    """Create a schedule, or replace the one of that name.

    Local files are uploaded now, and every run uses them. The jobs have the schedule's name.
    """
    from perdure.cli.client import connect
    from perdure.cli.jobs.task_source import load
    from perdure.sdk import schedules

    if len(cron.split()) == 1:
        raise Failure(f"{cron!r} is no cron expression\n  quote its five fields: '0 3 * * *'", EXIT_WRONG_INPUT)
    changes = overrides(resources)
    envs = variables(env_file, env, option="--env")
    secrets = variables(secret_file, secret, option="--secret")
    dag = load(entrypoint, envs=envs, secrets=secrets, name=name)
    dag = dag.override(**changes) if changes else dag
    saved = schedules.save(
        name, cron, dag, time_zone=time_zone, missed=missed, overlaps=overlap, ignore=ignore, client=connect()
    )
    for warning in saved["warnings"]:
        warn(warning)
    if output == "json":
        return print_json(saved)
    at = saved["schedule"]["next_at"]
    click.echo(f"Schedule {name}: the next job is launched {text.local_time(at, with_zone=True) if at else 'never'}.")


@schedule.command("ls")
@output_option
def list_schedules(output: str) -> None:
    """List the schedules."""
    from perdure.cli.client import connect
    from perdure.sdk import schedules

    listed = schedules.list_all(client=connect())
    if output == "json":
        return print_json(listed)
    if not listed:
        return click.echo("No schedules.")
    rows = [
        [
            one["name"],
            one["cron"],
            one["time_zone"],
            "paused" if one["paused"] else _time(one["next_at"]),
            _time(one["last_due_at"]),
            str(one["last_job_id"] or "-"),
            one["last_result"] or ("launched" if one["last_job_id"] else "-"),
        ]
        for one in listed
    ]
    for line in table.render(COLUMNS, rows, width=table.screen_width()):
        click.echo(line)


@schedule.command()
@click.argument("name")
def pause(name: str) -> None:
    """Launch nothing until the schedule is resumed."""
    from perdure.cli.client import connect
    from perdure.sdk import schedules

    schedules.pause(name, client=connect())
    click.echo(f"Schedule {name} is paused.")


@schedule.command()
@click.argument("name")
def resume(name: str) -> None:
    """Launch again, from now on: nothing that was due meanwhile."""
    from perdure.cli.client import connect
    from perdure.sdk import schedules

    resumed = schedules.resume(name, client=connect())
    click.echo(f"Schedule {name}: the next job is launched {_time(resumed['next_at'])}.")


@schedule.command()
@click.argument("name")
def run(name: str) -> None:
    """Launch a job of a schedule now, beside its times."""
    from perdure.cli.client import connect
    from perdure.sdk import schedules

    job_id = schedules.run(name, client=connect())
    click.echo(f"Job {job_id} ({name}) submitted.\n  logs:  perdure jobs logs {job_id}")


@schedule.command()
@click.argument("name")
@click.option("-y", "--yes", is_flag=True, help="Skip confirmation.")
def delete(name: str, yes: bool) -> None:
    """Remove a schedule. Its jobs go on."""
    from perdure.cli.client import connect
    from perdure.sdk import schedules

    confirm(f"Remove the schedule {name}?", yes=yes)
    schedules.remove(name, client=connect())
    click.echo(f"Schedule {name} is removed.")


def _time(at: str | None) -> str:
    return text.local_time(at) if at else "-"
