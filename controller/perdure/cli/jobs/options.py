"""The options that override a task's YAML from the command line, under SkyPilot's names."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click

from perdure.cli.completion import suggestions

Command = TypeVar("Command", bound=Callable[..., Any])

_RESOURCES = [
    click.option(
        "--infra",
        metavar="CLOUD[/REGION[/ZONE]]",
        help="Where to run; * matches any.",
        shell_complete=suggestions.clouds,
    ),
    click.option("--gpus", metavar="NAME[:COUNT]", help="Accelerators per node, such as A100:8."),
    click.option("--cpus", metavar="N[+]", help="vCPUs per node: 8, or 8+ for at least 8."),
    click.option("--memory", metavar="GB[+]", help="Memory per node: 32, or 32+ for at least 32."),
    click.option("--num-nodes", type=click.IntRange(min=1), help="Number of nodes that run the task."),
    click.option("--use-spot/--no-use-spot", default=None, help="Use preemptible machines, or on-demand ones."),
    click.option("-t", "--instance-type", metavar="TYPE", help="Instance type, such as g5.xlarge."),
    click.option("--disk-size", metavar="GB", help="Disk size per node."),
    click.option(
        "--disk-tier",
        type=click.Choice(["low", "medium", "high", "ultra", "best", "none"]),
        help="Disk performance tier.",
    ),
    click.option("--network-tier", type=click.Choice(["standard", "best"]), help="Network performance tier."),
    click.option("--image-id", metavar="IMAGE", help="Machine image of the cloud."),
    click.option(
        "--ports", metavar="PORT", multiple=True, help="Port or range to open, such as 8080-8090; repeatable."
    ),
    click.option("--labels", metavar="K=V", multiple=True, help="Label for the machines; repeatable."),
    click.option(
        "--job-recovery",
        metavar="STRATEGY",
        help="Recovery strategy; none stands for the default one.",
        shell_complete=suggestions.strategies,
    ),
    click.option(
        "--keep-on-failure",
        metavar="DURATION",
        help="Keep the machines of a failed job for a look: for 30m, or until it is cancelled.",
    ),
    click.option("--priority", type=click.IntRange(-1000, 1000), help="Jobs with higher priority start first."),
    click.option(
        "--workdir", metavar="DIR", help="Directory to upload and to run in.", shell_complete=suggestions.directories
    ),
    click.option("--git-url", metavar="URL", help="Git repository to clone and to run in, instead of --workdir."),
    click.option("--git-ref", metavar="REF", help="Branch, tag or commit of the git repository."),
    click.option(
        "--config",
        metavar="FILE|KEY=VALUE",
        multiple=True,
        shell_complete=suggestions.files,
        help="Setting of the task's `config`, such as kubernetes.pod_config=…, or a YAML file of them; repeatable.",
    ),
    click.option("--cloud", hidden=True),
    click.option("--region", hidden=True),
    click.option("--zone", hidden=True),
]
_VARIABLES = [
    click.option(
        "--env", metavar="K[=V]", multiple=True, help="Set a variable; without =V, copy it from this shell; repeatable."
    ),
    click.option(
        "--env-file",
        metavar="FILE",
        multiple=True,
        help="Set the variables in a file of K=V lines; repeatable.",
        shell_complete=suggestions.files,
    ),
    click.option("--secret", metavar="K[=V]", multiple=True, help="Like --env, but never displayed."),
    click.option(
        "--secret-file",
        metavar="FILE",
        multiple=True,
        help="Like --env-file, but never displayed.",
        shell_complete=suggestions.files,
    ),
]


def task_options(command: Command) -> Command:
    """Add the options of a task to a command, which receives them as keyword arguments."""
    for option in reversed(_RESOURCES + _VARIABLES):
        command = option(command)
    return command


ignore_option = click.option(
    "--ignore",
    metavar="FIELD",
    multiple=True,
    shell_complete=suggestions.ignorable,
    help="Launch without a field that is not supported, such as volumes; repeatable.",
)


def overrides(given: dict[str, Any]) -> dict[str, Any]:
    """The given options as keyword arguments of `Dag.override`. Raises `UsageError`, or `TaskError` for `--config`."""
    kept = {name: value for name, value in given.items() if value is not None and value != ()}
    legacy = {name: kept.pop(name) for name in ("cloud", "region", "zone") if name in kept}
    if legacy and "infra" in kept:
        raise click.UsageError(f"--{next(iter(legacy))} and --infra exclude each other; use --infra.")
    if legacy:
        kept["infra"] = "/".join(legacy.get(name, "*") for name in ("cloud", "region", "zone"))
    if "labels" in kept:
        kept["labels"] = dict(_label(label) for label in kept["labels"])
    if "ports" in kept:
        kept["ports"] = list(kept["ports"])
    if ("git_url" in kept or "git_ref" in kept) and "workdir" in kept:
        raise click.UsageError("--workdir excludes --git-url and --git-ref.")
    if "config" in kept:
        from perdure.sdk.spec.overrides import parse_settings

        kept["config"] = parse_settings(kept["config"])
    return kept


def variables(files: Sequence[str], assignments: Sequence[str], *, option: str) -> dict[str, str]:
    """The variables of all `--env-file` and `--env` options; `--env` wins. Raises `EnvFileError`."""
    if not files and not assignments:
        return {}
    from perdure.sdk.files import env_file

    values: dict[str, str] = {}
    for path in files:
        values |= env_file.read_env_file(path, environ=os.environ)
    return values | dict(env_file.parse_assignment(text, option=option, environ=os.environ) for text in assignments)


def _label(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise click.BadParameter(f"{text!r} is not K=V", param_hint="--labels")
    return key, value
