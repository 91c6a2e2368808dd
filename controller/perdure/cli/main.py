"""The `perdure` command: its subcommands, its version, and the handling of errors and Ctrl-C."""

from __future__ import annotations

import os
from typing import Any

import click

from perdure.cli.lazy import LazyCommand, LazyGroup
from perdure.cli.output import interrupt

COMMANDS = {
    "launch": LazyCommand("perdure.cli.clusters.launch:launch", "Launch machines that stay, and run a task on them."),
    "exec": LazyCommand("perdure.cli.clusters.launch:execute", "Run a task on a cluster that is up."),
    "status": LazyCommand("perdure.cli.clusters.status:status", "List clusters."),
    "queue": LazyCommand("perdure.cli.clusters.status:queue", "List the jobs of clusters."),
    "logs": LazyCommand("perdure.cli.clusters.logs:logs", "Show the logs of a cluster's job."),
    "cancel": LazyCommand("perdure.cli.clusters.lifecycle:cancel", "Cancel jobs of a cluster."),
    "stop": LazyCommand("perdure.cli.clusters.lifecycle:stop", "End the machines of clusters; their queues stay."),
    "start": LazyCommand("perdure.cli.clusters.lifecycle:start", "Launch machines for clusters that are stopped."),
    "down": LazyCommand("perdure.cli.clusters.lifecycle:down", "End clusters."),
    "autostop": LazyCommand("perdure.cli.clusters.lifecycle:autostop", "Stop idle clusters by themselves."),
    "jobs": LazyCommand("perdure.cli.jobs.group:jobs", "Launch, list, inspect and cancel jobs."),
    "serve": LazyCommand("perdure.cli.serve.group:serve", "Start, list, update and end services."),
    "ssh": LazyCommand("perdure.cli.jobs.enter.ssh:ssh", "Open an ssh session on a machine."),
    "port-forward": LazyCommand(
        "perdure.cli.jobs.enter.port_forward:port_forward", "Forward local ports to a machine."
    ),
    "ssh-proxy": LazyCommand("perdure.cli.jobs.enter.ssh:ssh_proxy", "Connect ssh with a machine: for ProxyCommand."),
    "check": LazyCommand("perdure.cli.clouds.check:check", "Check which clouds are usable, and how to fix the others."),
    "gpus": LazyCommand("perdure.cli.clouds.gpus:gpus", "List accelerators with their clouds, regions and prices."),
    "dashboard": LazyCommand("perdure.cli.controller.dashboard:dashboard", "Open the dashboard in a browser."),
    "controller": LazyCommand("perdure.cli.controller.group:controller", "Start, stop and inspect the controller."),
    "notify": LazyCommand(
        "perdure.cli.controller.notifications:notify", "List notifications, and test their channels."
    ),
    "users": LazyCommand("perdure.cli.controller.users:users", "Add users, and set their roles, limits and budgets."),
    "tokens": LazyCommand("perdure.cli.controller.tokens:tokens", "Create, list and revoke the tokens of users."),
    "login": LazyCommand("perdure.cli.controller.login:login", "Sign in to a controller with a browser."),
    "logout": LazyCommand("perdure.cli.controller.login:logout", "Forget the sign-in to a controller."),
    "whoami": LazyCommand("perdure.cli.controller.tokens:whoami", "Show whose token is used, and what it allows."),
    "audit": LazyCommand("perdure.cli.controller.audit:audit", "Show who did what."),
    "simulate": LazyCommand(
        "perdure.cli.simulate.command:simulate", "Compare recovery policies on recorded spot markets."
    ),
    "completion": LazyCommand(
        "perdure.cli.completion.command:completion", "Print the tab completion script for bash, zsh or fish."
    ),
}


# Commands of SkyPilot, and what to do here instead.
ELSEWHERE = {
    "show-gpus": "use `perdure gpus`",
    "cost-report": "use `perdure jobs queue`, whose COST column has the cost of each job",
    "optimize": "use `perdure jobs launch --dryrun`",
    "storage": "buckets belong to your account; use the tools of the cloud",
    "volumes": "volumes are not supported; use `file_mounts` with a bucket",
    "api": "use `perdure controller`",
    "workspace": "there are no workspaces",
    "spot": "use `perdure jobs`",
    "local": "the local cloud needs no command; see `perdure check local`",
}
# Options of SkyPilot's commands, and what to do here instead.
_OWN_MACHINES = "every job has machines of its own, so leave it out"
_NO_POOLS = "pools are not supported; --num-jobs N launches N jobs"
_ALWAYS_FRESH = "what is shown is always up to date, so leave it out"
OPTIONS_ELSEWHERE = {
    "-c": _OWN_MACHINES,
    "--cluster": _OWN_MACHINES,
    "--async": "use -d, which returns once the job is submitted",
    "-p": _NO_POOLS,
    "--pool": _NO_POOLS,
    "--job-group": "job groups are not supported yet",
    "--local-disk": "write `local_disk` under `resources` of the YAML",
    "-r": _ALWAYS_FRESH,
    "--refresh": _ALWAYS_FRESH,
    "--after": "use --since",
    "--retry-until-up": "a job waits for machines anyway, so leave it out",
    "--down": "a job's machines end with it, so leave it out",
    "--max-duration": "write `max_duration` under `resources.job_recovery` of the YAML",
    "--task": "a job is cancelled as a whole, and `jobs logs ID TASK` shows one task",
}


class RootGroup(LazyGroup):
    """The root of the command line: turns an exception of any command, or Ctrl-C, into a message and an exit code."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            interrupt.raise_on_interrupt()
            return super().invoke(ctx)
        except KeyboardInterrupt:
            interrupt.end_line()
            raise click.exceptions.Exit(interrupt.EXIT_INTERRUPTED) from None
        except click.NoSuchOption as error:
            advice = OPTIONS_ELSEWHERE.get(error.option_name)
            if advice is None:
                raise
            raise click.UsageError(f"There is no option {error.option_name}: {advice}.", error.ctx) from error
        except click.BadParameter as error:
            if (text := _plain(error)) == error.message:
                raise
            raise click.BadParameter(text, error.ctx, error.param, error.param_hint) from error
        except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
            raise
        except Exception as error:
            if os.environ.get("PERDURE_DEBUG") == "1":
                raise
            from perdure.cli.errors import Failure

            raise Failure.from_exception(error) from error


def _plain(error: click.BadParameter) -> str:
    """Click's message, without its names of types, and with what to do about an ID that is none."""
    message = error.message
    for word, plain in (("integer range", "whole number"), ("float range", "number"), ("integer", "whole number")):
        message = message.replace(f"a valid {word}.", f"a {plain}.")
    if isinstance(error.param, click.Argument) and message.endswith("is not a whole number."):
        return f"{message} `perdure jobs queue` and `perdure queue` list IDs."
    return message


@click.group(
    cls=RootGroup,
    commands_at=COMMANDS,
    elsewhere=ELSEWHERE,
    epilog="""\b
Examples:
  perdure jobs launch train.yaml         run a task, and follow its logs through every recovery
  perdure jobs launch --gpus A100:8 -- python train.py --lr 3e-4
  perdure jobs queue --watch             status, place and cost of all jobs
  perdure jobs show 7                    why job 7 moved, and when
""",
)
@click.version_option(package_name="perdure", message="%(prog)s %(version)s", help="Show the version.")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Run training jobs on preemptible machines until they finish.

    A controller starts on this computer on first use. To use one that runs elsewhere, set PERDURE_ENDPOINT and
    PERDURE_TOKEN. Set PERDURE_DEBUG=1 to see the traceback of an error.
    """
    if os.environ.get("NO_COLOR"):
        ctx.color = False


def main() -> None:
    """Run the command line of this process."""
    cli(prog_name="perdure")
