"""`perdure controller up|upgrade|down`: a controller on a machine of its own.

`python -m perdure.controller host` does the work, in a process of its own.
"""

from __future__ import annotations

import subprocess
import sys

import click

from perdure.cli.client import client_of
from perdure.cli.errors import Failure
from perdure.cli.output.confirm import confirm
from perdure.sdk.connection import discovery, endpoint, hosted_controller
from perdure.sdk.connection.client import ApiError, Client, ConnectionLost
from perdure.sdk.connection.endpoint import Endpoint
from perdure.sdk.connection.private_home import make_private

EVERYBODY = "0.0.0.0/0"


@click.command(short_help="Create a controller on a machine of its own.")
@click.option(
    "--infra", required=True, metavar="CLOUD/REGION[/ZONE]", help="Location, such as aws/us-east-1, or local."
)
@click.option(
    "-t", "--instance-type", metavar="TYPE", help="Instance type; by default a small one that is for controllers."
)
@click.option(
    "--disk-size",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    metavar="GB",
    help="Size of the disk for its state.",
)
@click.option(
    "--role",
    default="perdure-controller",
    show_default=True,
    help="Role, service account or managed identity; created if missing.",
)
@click.option(
    "--allow-cidr",
    default=EVERYBODY,
    show_default=True,
    metavar="CIDR",
    help="Network that may connect; must include you and all nodes.",
)
@click.option("-y", "--yes", is_flag=True, help="Skip confirmation.")
def up(infra: str, instance_type: str | None, disk_size: int, role: str, allow_cidr: str, yes: bool) -> None:
    """Create a controller on a machine of its own, so that this computer may be switched off.

    From then on, all commands on this computer use it. Run `up` again after an interruption: it cleans up first and
    never creates a second controller; a failed `up` leaves nothing running. It requires the cloud's section in
    config.yaml, which is copied to the machine.
    """
    hosted = hosted_controller.load(endpoint.home_dir())
    is_up = hosted is not None and hosted.stage == hosted_controller.UP
    local = None if is_up else discovery.running(endpoint.home_dir())
    if local is not None:
        _require_no_local_jobs(local)
    if not is_up:
        callers = "everybody" if allow_cidr == EVERYBODY else allow_cidr
        if not infra.startswith("local"):
            click.echo(f"Its one port will admit {callers} (TLS, with a token); --allow-cidr changes that.")
        confirm(f"Create a controller's machine in {infra}, which is billed until `down`?", yes=yes, default=False)
    words = ["--infra", infra, "--disk-gib", str(disk_size), "--role", role, "--allow-cidr", allow_cidr]
    _run("up", *words, *(["--instance-type", instance_type] if instance_type else []))
    if local is not None:
        client_of(local).stop_controller()
        click.echo(
            "The controller on this computer had no unfinished jobs and was stopped. "
            f"Its history stays in {endpoint.home_dir()} and is shown again after `perdure controller down`."
        )


@click.command(short_help="Upgrade the controller to the version installed here.")
def upgrade() -> None:
    """Upgrade the controller created by `up` to the version and the config.yaml of this computer.

    It restarts; running jobs continue. If the installation fails, nothing changes.
    """
    _run("upgrade")


@click.command()
@click.option(
    "-f", "--force", is_flag=True, help="Proceed despite unfinished jobs or a controller that does not answer."
)
@click.option(
    "--delete-disk", is_flag=True, help="Also delete its state: job history, logs and secrets. This cannot be undone."
)
@click.option("-y", "--yes", is_flag=True, help="Skip confirmation.")
def down(force: bool, delete_disk: bool, yes: bool) -> None:
    """Delete the machine created by `up`. Its disk is kept, and the next `up` uses it again."""
    hosted = hosted_controller.load(endpoint.home_dir())
    if hosted is None or (hosted.stage == hosted_controller.DOWN and not delete_disk):
        click.echo("No controller is up.")
        return
    if hosted.stage == hosted_controller.UP and not force:
        _require_no_hosted_jobs(hosted)
    machine = f"Delete the controller's machine {hosted.instance} in {hosted.zone}" if hosted.instance else ""
    disk = f"delete its disk {hosted.disk} with all data" if delete_disk else ""
    question = " and ".join(part for part in (machine, disk) if part) or "Clean up what `up` left behind"
    confirm(f"{question[0].upper()}{question[1:]}?", yes=yes, default=False)
    _run("down", *(["--delete-disk"] if delete_disk else []))


def _require_no_hosted_jobs(hosted: hosted_controller.Hosted) -> None:
    try:
        unfinished = _unfinished_jobs(client_of(hosted.endpoint))
    except (ApiError, ConnectionLost) as error:
        raise Failure(f"{error.message}\n  it may have unfinished jobs; to delete it anyway, add --force") from error
    if unfinished:
        raise Failure(
            f"the controller has unfinished jobs: {unfinished}\n"
            "  wait for them, cancel them, or add --force to leave them without a controller"
        )


def _require_no_local_jobs(local: Endpoint) -> None:
    """Commands will use the new controller, so jobs of the local one would no longer be visible."""
    if unfinished := _unfinished_jobs(client_of(local)):
        raise Failure(
            f"the controller on this computer has unfinished jobs: {unfinished}\n"
            "  wait for them or cancel them, then try again"
        )


def _unfinished_jobs(client: Client) -> str:
    from perdure.recovery.statuses import TERMINAL

    jobs = client.controller()["jobs"]
    return ", ".join(f"{count} {status}" for status, count in jobs.items() if count and status not in TERMINAL)


def _run(action: str, *options: str) -> None:
    home = endpoint.home_dir()
    make_private(home)
    command = [sys.executable, "-P", "-m", "perdure.controller", "host", action, "--home", str(home), *options]
    process = subprocess.Popen(command, cwd=home)
    while True:
        try:
            code = process.wait()
            break
        except KeyboardInterrupt:
            continue  # the child process receives the signal, too, and cleans up
    if code:
        raise SystemExit(code)
