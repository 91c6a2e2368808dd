"""`perdure controller up|upgrade|down`: one on a machine of its own. A process of the controller's code does it."""

from __future__ import annotations

import subprocess
import sys

import click

from perdure.cli.confirm import ask
from perdure.cli.errors import Failure
from perdure.sdk import endpoint, hosted
from perdure.sdk.client import ApiError, Client, ConnectionLost
from perdure.sdk.endpoint import Endpoint


@click.command(short_help="Bring one up on a machine of its own.")
@click.option("--infra", required=True, metavar="CLOUD/REGION[/ZONE]", help="Where, such as aws/us-east-1; or local.")
@click.option("-t", "--instance-type", metavar="TYPE", help="Default: the cheapest with 2 vCPUs and 4 GiB.")
@click.option("--disk-size", type=click.IntRange(min=1), default=20, metavar="GB", help="Of the disk for its state.")
@click.option(
    "--role",
    default="perdure-controller",
    show_default=True,
    help="Role, service account or identity; made if missing.",
)
@click.option(
    "--callers", default="0.0.0.0/0", show_default=True, metavar="CIDR", help="Who may reach it: you and all nodes."
)
def up(infra: str, instance_type: str | None, disk_size: int, role: str, callers: str) -> None:
    """Bring a controller up on a machine of its own; this computer may then be switched off.

    From then on every command here goes to it. What is broken off can be run again: there is one controller, and
    nothing is left running by a try that fails. It needs the cloud's section in config.yaml, whose settings it gets.
    """
    found = hosted.read(endpoint.home_dir())
    is_up = found is not None and found.stage == hosted.UP
    own = None if is_up else endpoint.running(endpoint.home_dir())
    if own is not None:
        _require_no_jobs_here(own)
    words = ["--infra", infra, "--disk-gib", str(disk_size), "--role", role, "--callers", callers]
    _run("up", *words, *(["--instance-type", instance_type] if instance_type else []))
    if own is not None:
        Client(own).stop_controller()
        click.echo("Your own controller, on this computer, had no jobs and is stopped.")


@click.command(short_help="Give it the Perdure that is installed here.")
def upgrade() -> None:
    """Give the controller that is up the version of Perdure that is installed here, and this config.yaml.

    It starts again; running jobs go on. What can not be installed there changes nothing.
    """
    _run("upgrade")


@click.command()
@click.option("-f", "--force", is_flag=True, help="Even while jobs live, or if it does not answer.")
@click.option(
    "--delete-disk", is_flag=True, help="Its state, too: jobs' history, logs, secrets. It can not be had again."
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
def down(force: bool, delete_disk: bool, yes: bool) -> None:
    """End the machine of the controller that is up. Its state stays on its disk, and `up` goes on with it."""
    found = hosted.read(endpoint.home_dir())
    if found is None or (found.stage == hosted.DOWN and not delete_disk):
        click.echo("No controller is up.")
        return
    if found.stage == hosted.UP and not force:
        _require_no_jobs_there(found)
    machine = f"End the controller's machine {found.instance} in {found.zone}" if found.instance else ""
    disk = f"delete its disk {found.disk} with all that it holds" if delete_disk else ""
    question = " and ".join(part for part in (machine, disk) if part) or "Clear up what `up` left"
    ask(f"{question[0].upper()}{question[1:]}?", yes=yes, default=False)
    _run("down", *(["--delete-disk"] if delete_disk else []))


def _require_no_jobs_there(found: hosted.Hosted) -> None:
    try:
        living = _living(Client(found.endpoint))
    except (ApiError, ConnectionLost) as error:
        raise Failure(
            f"{error.message}\n  whether jobs live is not known; to end it all the same, add --force"
        ) from error
    if living:
        raise Failure(
            f"the controller has jobs: {living}\n"
            "  wait for them, cancel them, or add --force: they go on without a controller until their machines give up"
        )


def _require_no_jobs_here(own: Endpoint) -> None:
    """Commands will go elsewhere: what runs under the embedded controller would be out of sight."""
    if living := _living(Client(own)):
        raise Failure(
            f"your own controller, on this computer, has jobs: {living}\n  wait for them or cancel them, then try again"
        )


def _living(client: Client) -> str:
    from perdure.recovery.statuses import TERMINAL

    jobs = client.controller()["jobs"]
    return ", ".join(f"{count} {status}" for status, count in jobs.items() if count and status not in TERMINAL)


def _run(word: str, *options: str) -> None:
    home = endpoint.home_dir()
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    command = [sys.executable, "-P", "-m", "perdure.controller", "host", word, "--home", str(home), *options]
    process = subprocess.Popen(command, cwd=home)
    while True:
        try:
            code = process.wait()
            break
        except KeyboardInterrupt:
            continue  # it was told, too, and ends what it began
    if code:
        raise SystemExit(code)
