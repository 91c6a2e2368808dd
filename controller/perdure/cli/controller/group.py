"""`perdure controller`: start, stop and inspect the controller. Only `start` starts one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import Any

import click

from perdure.cli.client import client_of, outdated_config
from perdure.cli.controller.database import accept_database, backup, restore, run_controller
from perdure.cli.controller.hosting import down, up, upgrade
from perdure.cli.errors import Failure, warn
from perdure.cli.lazy import CONTEXT
from perdure.cli.output.progress import spinner
from perdure.sdk.connection import discovery, endpoint
from perdure.sdk.connection.client import ApiError, ConnectionLost
from perdure.sdk.connection.endpoint import Endpoint, NoController

STOP_TIMEOUT_S = 30.0
NOT_RUNNING = "The controller is not running; it starts on first use."


@click.group(
    context_settings=CONTEXT,
    epilog="""\b
Examples:
  perdure controller status
  perdure controller logs --follow
  perdure controller stop                running jobs continue; the next start picks them up
  perdure controller up --infra aws/us-east-1
""",
)
def controller() -> None:
    """Start, stop and inspect the controller.

    It runs on this computer, with its state in PERDURE_HOME (~/.perdure by default), or on a machine of its own that
    `up` creates.
    """


for _command in (up, upgrade, down, backup, restore, accept_database):
    controller.add_command(_command)


@controller.command()
def start() -> None:
    """Start the controller if it is not running."""
    target = discovery.find()
    if target is None:
        with spinner("Starting the controller"):
            target = discovery.ensure()
        click.echo(f"The controller is running at {target.url} (process {target.pid}).")
    elif target.home is None:
        _require_healthy(target)
        click.echo(f"The controller at {target.url} ({_machine(target) or 'PERDURE_ENDPOINT'}) is already running.")
    else:
        click.echo(f"The controller is already running at {target.url} (process {target.pid}).")
    _warn_on_version_mismatch(target)


@controller.command()
@click.option("-y", "--yes", is_flag=True, help="Skip confirmation, which only a remote controller needs.")
def stop(yes: bool) -> None:
    """Stop the controller. Running jobs continue; the next start picks them up.

    The endpoints of services refuse connections until then; their replicas go on.
    """
    target = _find_unless_token_lost()
    if target is None:
        _terminate_unresponsive()
        return
    if _machine(target):
        raise Failure(
            "the controller runs on a machine of its own, which would restart it\n"
            "  to shut it down: perdure controller down"
        )
    if target.home is None:
        from perdure.cli.output.confirm import confirm

        confirm(f"Stop the controller at {target.url} for all its users?", yes=yes, default=False)
    services = _services(target)
    try:
        client_of(target).stop_controller()
    except ApiError as error:
        if error.status != 401 or target.home is None:
            raise
        _terminate_unresponsive()
        return
    if target.pid is not None:
        _wait_for_exit(target.pid)
    click.echo("The controller is stopped; running jobs continue.")
    if services:
        click.echo(f"Until it is started, the endpoints of services refuse connections: {', '.join(services)}.")


def _services(target: Endpoint) -> list[str]:
    """The names of the services whose endpoints the controller opens; none if it does not answer."""
    from perdure.sdk import serve

    try:
        return [one["name"] for one in serve.status(client=client_of(target))]
    except (ApiError, ConnectionLost):
        return []


@controller.command(short_help="Move the controller from SQLite to PostgreSQL.")
@click.option("--to", metavar="URL", help="A new, empty database: postgresql://user@host/database.")
def migrate(to: str | None) -> None:
    """Move the controller on this computer from SQLite to PostgreSQL, which several controllers can share.

    The controller is stopped first; running jobs continue. All data is copied, compared and committed in one
    transaction, so an interrupted move changes nothing. See docs/guides/several-controllers.md.

    Give a URL with a password in PERDURE_MIGRATE_TO: other users of this computer can read the arguments of a command.
    """
    home = endpoint.home_dir()
    options = ("--to", to) if to is not None else ()
    if (pid := discovery.recorded_pid(home)) is not None:
        if code := run_controller("migrate", "--check", *options):
            raise SystemExit(code)
        os.kill(pid, signal.SIGTERM)
        _wait_for_exit(pid)
        click.echo("The controller is stopped; running jobs continue.")
    raise SystemExit(run_controller("migrate", *options))


@controller.command("rotate-key", short_help="Replace the key that signs tokens and seals secrets.")
def rotate_key() -> None:
    """Replace the key of the controller on this computer, which signs its nodes' tokens and seals its jobs' secrets.

    A running controller is stopped first and started again afterwards; jobs continue. If this is interrupted, the old
    key stays in use: run it again. See docs/concepts/security.md.
    """
    home = endpoint.home_dir()
    pid = discovery.recorded_pid(home)
    if pid is not None:
        os.kill(pid, signal.SIGTERM)
        _wait_for_exit(pid)
        click.echo("The controller is stopped; running jobs continue.")
    command = [sys.executable, "-P", "-m", "perdure.controller", "rotate-key", "--home", str(home)]
    code = subprocess.run(command, cwd=home if home.is_dir() else None, check=False).returncode
    if pid is not None:
        from perdure.sdk.connection.embedded_start import start as start_embedded

        click.echo(f"The controller is running again at {start_embedded(home).url}.")
    raise SystemExit(code)


@controller.command()
def status() -> None:
    """Show the controller's status. Exits with 1 if it is not running."""
    target = discovery.find()
    if target is None:
        pid = discovery.recorded_pid(endpoint.home_dir())
        click.echo(f"The controller (process {pid}) is running, but does not answer." if pid else NOT_RUNNING)
        raise SystemExit(1)
    try:
        info = client_of(target).controller()
    except ConnectionLost as error:
        if machine := _machine(target):
            raise Failure(
                f"{error.message}: {machine}\n  to recover it with its state: perdure controller up"
            ) from error
        raise
    jobs = ", ".join(f"{n} {name}" for name, n in info["jobs"].items() if n) or "none"
    from perdure.cli.output.text import ago, local_time

    facts = {
        "version": info["version"],
        "id": info["id"],
        "process": str(info["pid"]),
        "started": f"{local_time(info['started_at'], with_zone=True)} ({ago(info['started_at'], time.time())})",
        "home": info["home"],
        "jobs": jobs,
    }
    facts.update(_optional_facts(info))
    if lack := _shortage(info["home"]):
        facts["disk"] = f"{lack}: no job can be launched or cancelled until something there is deleted"
    if machine := _machine(target):
        facts["machine"] = machine
    if target.fingerprint:
        facts["TLS"] = f"sha256:{target.fingerprint}"
    click.echo(f"The controller is running at {target.url}")
    for name, value in facts.items():
        click.echo(f"  {name:<9} {value}")
    _warn_on_version_mismatch(target, info["version"])
    if note := outdated_config(info):
        warn(note)


@controller.command()
@click.option("--follow/--no-follow", "-f", default=False, help="Follow the log until Ctrl-C.")
@click.option(
    "--tail", type=click.IntRange(min=0), default=0, metavar="N", help="Show only the last N lines; 0 shows all."
)
def logs(follow: bool, tail: int) -> None:
    """Show the controller's log, or its last stderr output if it is not running."""
    target = discovery.find()
    if target is None:
        click.echo(NOT_RUNNING, err=True)
        if last := discovery.stderr_tail(endpoint.home_dir(), tail or 100):
            click.echo(last)
        raise SystemExit(1)
    try:
        with client_of(target).controller_logs(follow=follow, tail=tail or None) as stream:
            for chunk in stream:
                sys.stdout.buffer.write(chunk)
                sys.stdout.buffer.flush()
    except KeyboardInterrupt:
        click.echo()


def _shortage(home: str) -> str:
    """What the disk of a controller's home lacks; empty if nothing, or if it is not on this computer."""
    from perdure.sdk.connection.embedded_start import shortage

    own = endpoint.home_dir()
    return shortage(own) if own.is_dir() and str(own) == home else ""


def _machine(target: Endpoint) -> str | None:
    """The machine of a controller created by `up` on this computer; None for any other controller."""
    from perdure.sdk.connection import hosted_controller

    record = hosted_controller.load(endpoint.home_dir())
    if record is None or record.stage != hosted_controller.UP or record.url != target.url:
        return None
    return f"{record.instance} ({record.instance_type} in {record.zone}), state on {record.disk}"


def _optional_facts(info: Mapping[str, Any]) -> dict[str, str]:
    """What is shown only if there is something to show."""
    from perdure.cli.output.text import local_time, money

    shown = {}
    if probes := info.get("probes"):
        spent, budget = money(probes["cost_usd"]), money(probes["budget_usd"])
        shown["probes"] = f"{probes['count']} in the last day, {spent} of {budget} spent"
    if overdue := info.get("overdue"):
        shown["health"] = f"it does not keep up: {overdue}; see `perdure controller logs`"
    if info.get("rejected_frames") or info.get("set_aside"):
        shown["rejected"] = f"{info['rejected_frames']} invalid frames of nodes, {info['set_aside']} events set aside"
    if backups := info.get("backup"):
        last = "none yet" if backups["last"] is None else local_time(backups["last"])
        failed = f"; the newest attempt failed: {backups['error']}" if backups["error"] else ""
        shown["backup"] = f"to {backups['to']}, the last one: {last}{failed}"
    if unknown := info.get("unknown_machines"):
        shown["unknown"] = "machines of jobs that the database does not know: " + ", ".join(
            map(_unknown_machine, unknown)
        )
    return shown


def _unknown_machine(machine: dict[str, Any]) -> str:
    of = f"of job {machine['job_id']}"
    return f"{machine['instance']} ({machine['cloud']}) {of}" if machine["instance"] else f"one {of}"


def _require_healthy(target: Endpoint) -> None:
    from perdure.sdk.connection.health import is_healthy

    if is_healthy(target):
        return
    if machine := _machine(target):
        raise Failure(f"{target.url} does not answer: {machine}\n  to recover it with its state: perdure controller up")
    raise Failure(
        f"the controller at {target.url} (PERDURE_ENDPOINT) does not answer\n"
        "  start it where it runs, or unset PERDURE_ENDPOINT to use a controller on this computer"
    )


def _warn_on_version_mismatch(target: Endpoint, version: str | None = None) -> None:
    from perdure.cli.client import version_mismatch

    try:
        if note := version_mismatch(version or client_of(target).controller()["version"]):
            warn(note)
    except ApiError as error:
        warn(str(error))


def _find_unless_token_lost() -> Endpoint | None:
    """The controller; None also for a local one whose token is lost: its process can still be terminated."""
    try:
        return discovery.find()
    except NoController:
        if discovery.recorded_pid(endpoint.home_dir()) is None:
            raise
        return None


def _terminate_unresponsive() -> None:
    """Terminate a local controller that does not accept requests; print a message if there is none."""
    pid = discovery.recorded_pid(endpoint.home_dir())
    if pid is None:
        click.echo("The controller is not running.")
        return
    os.kill(pid, signal.SIGTERM)
    _wait_for_exit(pid)
    click.echo(f"The controller (process {pid}) did not accept the request and was terminated; running jobs continue.")


def _wait_for_exit(pid: int) -> None:
    deadline = time.monotonic() + STOP_TIMEOUT_S
    with spinner("Stopping the controller"):
        while discovery.is_controller(pid):
            if time.monotonic() > deadline:
                raise Failure(
                    f"the controller (process {pid}) did not exit within {STOP_TIMEOUT_S:.0f} s\n  try: kill -9 {pid}"
                )
            time.sleep(0.05)
