"""The options that change a task from the command line: SkyPilot's names, on top of what the YAML says."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])

_RESOURCES = [
    click.option("--infra", metavar="CLOUD[/REGION[/ZONE]]", help="Where to run; * stands for any."),
    click.option("--gpus", metavar="NAME[:COUNT]", help="Accelerators of each node, such as A100:8."),
    click.option("--cpus", metavar="N[+]", help="vCPUs of each node: 8 exactly, or 8+ for at least 8."),
    click.option("--memory", metavar="GB[+]", help="Memory of each node: 32 exactly, or 32+ for at least 32."),
    click.option("--num-nodes", type=click.IntRange(min=1), help="How many machines run the task together."),
    click.option("--use-spot/--no-use-spot", default=None, help="Preemptible machines, or on-demand ones."),
    click.option("-t", "--instance-type", metavar="TYPE", help="One instance type, such as g5.xlarge."),
    click.option("--disk-size", metavar="GB", help="Size of each node's disk."),
    click.option(
        "--disk-tier", type=click.Choice(["low", "medium", "high", "ultra", "best", "none"]), help="Its speed."
    ),
    click.option("--network-tier", type=click.Choice(["standard", "best"]), help="Speed of the network."),
    click.option("--image-id", metavar="IMAGE", help="Machine image, or docker:IMAGE."),
    click.option("--ports", metavar="PORT", multiple=True, help="A port, or a range such as 8080-8090, to open."),
    click.option("--labels", metavar="K=V", multiple=True, help="A label to put on the machines."),
    click.option("--job-recovery", metavar="STRATEGY", help="How to recover, or none."),
    click.option("--priority", type=click.IntRange(-1000, 1000), help="Jobs of higher priority go first."),
    click.option("--workdir", metavar="DIR", help="Directory to send along and to run in."),
    click.option("--cloud", hidden=True),
    click.option("--region", hidden=True),
    click.option("--zone", hidden=True),
]
_VARIABLES = [
    click.option("--env", metavar="K[=V]", multiple=True, help="Set a variable; without =V, as it is set here."),
    click.option("--env-file", metavar="FILE", multiple=True, help="Set the variables of a file of K=V lines."),
    click.option("--secret", metavar="K[=V]", multiple=True, help="As --env, but never shown anywhere."),
    click.option("--secret-file", metavar="FILE", multiple=True, help="As --env-file, but never shown anywhere."),
]


def task_options(command: Command) -> Command:
    """Adds the options of a task to a command; it gets them all as keywords."""
    for option in reversed(_RESOURCES + _VARIABLES):
        command = option(command)
    return command


def overrides(given: dict[str, Any]) -> dict[str, Any]:
    """The options that were given, as keywords of `Dag.override`."""
    kept = {name: value for name, value in given.items() if value is not None and value != ()}
    legacy = {name: kept.pop(name) for name in ("cloud", "region", "zone") if name in kept}
    if legacy and "infra" in kept:
        raise click.UsageError(f"--{next(iter(legacy))} and --infra were both given; keep --infra.")
    if legacy:
        kept["infra"] = "/".join(legacy.get(name, "*") for name in ("cloud", "region", "zone"))
    if "labels" in kept:
        kept["labels"] = dict(_label(label) for label in kept["labels"])
    if "ports" in kept:
        kept["ports"] = list(kept["ports"])
    return kept


def variables(files: Sequence[str], assignments: Sequence[str], *, option: str) -> dict[str, str]:
    """The variables of `--env-file`s and `--env`s; the latter win. Raises `EnvFileError`."""
    if not files and not assignments:
        return {}
    from perdure.sdk import envfile

    values: dict[str, str] = {}
    for path in files:
        values |= envfile.read(path, environ=os.environ)
    return values | dict(envfile.assignment(text, option=option, environ=os.environ) for text in assignments)


def _label(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise click.BadParameter(f"{text!r} is not K=V", param_hint="--labels")
    return key, value
