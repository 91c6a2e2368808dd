"""`perdure controller`: start, stop and look at it. Only `start` ever starts one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import click

from perdure.cli.errors import Failure, warn
from perdure.cli.hosting import down, up, upgrade
from perdure.cli.lazy import CONTEXT
from perdure.cli.progress import working
from perdure.sdk import endpoint
from perdure.sdk.client import ApiError, Client, ConnectionLost
from perdure.sdk.endpoint import Endpoint, NoController

STOP_TIMEOUT_S = 30.0
NOT_RUNNING = "The controller is not running; it starts by itself when it is needed."


@click.group(
    context_settings=CONTEXT,
    epilog="""\b
Examples:
  perdure controller status
  perdure controller logs --follow
  perdure controller stop                jobs go on; the next start finds them again
  perdure controller up --infra aws/us-east-1
""",
)
def controller() -> None:
    """Start, stop and look at the controller.

    Your own one keeps everything in PERDURE_HOME (by default ~/.perdure). `up` gives it a machine of its own instead.
    """


for _command in (up, upgrade, down):
    controller.add_command(_command)


@controller.command()
def start() -> None:
    """Start the controller, if it does not run."""
    found = endpoint.find()
    if found is None:
        with working("Starting the controller"):
            found = endpoint.ensure()
        click.echo(f"The controller runs at {found.url} (process {found.pid}).")
    elif found.home is None:
        _require_answer(found)
        click.echo(f"The controller at {found.url} ({_machine(found) or 'PERDURE_ENDPOINT'}) runs already.")
    else:
        click.echo(f"The controller runs already, at {found.url} (process {found.pid}).")
    _warn_of_version(found)


@controller.command()
@click.option("-y", "--yes", is_flag=True, help="Do not ask before stopping a controller that others may share.")
def stop(yes: bool) -> None:
    """Stop the controller. Running jobs go on, and are found again at the next start."""
    found = _found_or_token_lost()
    if found is None:
        _stop_deaf()
        return
    if _machine(found):
        raise Failure(
            "it runs on a machine of its own, where it is started again\n  to end it: perdure controller down"
        )
    if found.home is None:
        from perdure.cli.confirm import ask

        ask(f"Stop the controller at {found.url}, for everyone who uses it?", yes=yes, default=False)
    try:
        Client(found).stop_controller()
    except ApiError as error:
        if error.status != 401 or found.home is None:
            raise
        _stop_deaf()
        return
    if found.pid is not None:
        _await_end(found.pid)
    click.echo("The controller is stopped; running jobs go on.")


@controller.command(short_help="Move your controller from SQLite to PostgreSQL.")
@click.option("--to", required=True, metavar="URL", help="postgresql://user@host/database, a new and empty one.")
def migrate(to: str) -> None:
    """Move your controller from its SQLite file to PostgreSQL, where several can share it.

    It is stopped first; running jobs go on. Everything is copied, compared and then committed at once: if it is broken
    off, nothing has changed. See docs/several-controllers.md.
    """
    home = endpoint.home_dir()
    if (pid := endpoint.recorded_pid(home)) is not None:
        os.kill(pid, signal.SIGTERM)
        _await_end(pid)
        click.echo("The controller is stopped; running jobs go on.")
    command = [sys.executable, "-P", "-m", "perdure.controller", "migrate", "--home", str(home), "--to", to]
    raise SystemExit(subprocess.run(command, cwd=home if home.is_dir() else None, check=False).returncode)


@controller.command()
def status() -> None:
    """How the controller is. Exits with 1 if it does not run."""
    found = endpoint.find()
    if found is None:
        pid = endpoint.recorded_pid(endpoint.home_dir())
        click.echo(f"The controller (process {pid}) runs, but does not answer." if pid else NOT_RUNNING)
        raise SystemExit(1)
    try:
        info = Client(found).controller()
    except ConnectionLost as error:
        if machine := _machine(found):
            raise Failure(f"{error.message}: {machine}\n  `perdure controller up` goes on with its state") from error
        raise
    jobs = ", ".join(f"{n} {name}" for name, n in info["jobs"].items() if n) or "none"
    from perdure.cli.text import ago, local_time, money

    facts = {
        "version": info["version"],
        "id": info["id"],
        "process": str(info["pid"]),
        "started": f"{local_time(info['started_at'])} ({ago(info['started_at'], time.time())})",
        "home": info["home"],
        "jobs": jobs,
    }
    if probes := info.get("probes"):
        spent, budget = money(probes["cost_usd"]), money(probes["budget_usd"])
        facts["probes"] = f"{probes['count']} in the last day, for {spent} of {budget}"
    if machine := _machine(found):
        facts["machine"] = machine
    if found.fingerprint:
        facts["TLS"] = f"sha256:{found.fingerprint}"
    click.echo(f"The controller runs at {found.url}")
    for name, value in facts.items():
        click.echo(f"  {name:<9} {value}")
    _warn_of_version(found, info["version"])


@controller.command()
@click.option("--follow/--no-follow", "-f", default=False, help="Go on until Ctrl-C.")
@click.option("--tail", type=click.IntRange(min=0), default=0, metavar="N", help="Only the last N lines; 0 for all.")
def logs(follow: bool, tail: int) -> None:
    """The controller's own log. If it does not run: what it last wrote to stderr."""
    found = endpoint.find()
    if found is None:
        click.echo(NOT_RUNNING, err=True)
        if last := endpoint.stderr_tail(endpoint.home_dir(), tail or 100):
            click.echo(last)
        raise SystemExit(1)
    try:
        with Client(found).controller_logs(follow=follow, tail=tail or None) as stream:
            for chunk in stream:
                sys.stdout.buffer.write(chunk)
                sys.stdout.buffer.flush()
    except KeyboardInterrupt:
        click.echo()


def _machine(found: Endpoint) -> str | None:
    """Of the controller that was brought up from here; None for any other."""
    from perdure.sdk import hosted

    record = hosted.read(endpoint.home_dir())
    if record is None or record.stage != hosted.UP or record.url != found.url:
        return None
    return f"{record.instance} ({record.instance_type} in {record.zone}), its state on {record.disk}"


def _require_answer(found: Endpoint) -> None:
    from perdure.sdk.client import is_healthy

    if is_healthy(found):
        return
    if machine := _machine(found):
        raise Failure(f"{found.url} does not answer: {machine}\n  `perdure controller up` goes on with its state")
    raise Failure(
        f"the controller at {found.url} (PERDURE_ENDPOINT) does not answer\n"
        "  it runs elsewhere: start it there, or unset PERDURE_ENDPOINT to use one of your own"
    )


def _warn_of_version(found: Endpoint, version: str | None = None) -> None:
    from perdure.cli.version import mismatch

    try:
        if note := mismatch(version or Client(found).controller()["version"]):
            warn(note)
    except ApiError as error:
        warn(str(error))


def _found_or_token_lost() -> Endpoint | None:
    """The controller; None, too, for one's own whose token is lost: its process can still be asked to end."""
    try:
        return endpoint.find()
    except NoController:
        if endpoint.recorded_pid(endpoint.home_dir()) is None:
            raise
        return None


def _stop_deaf() -> None:
    """End a controller that lives but does not answer; say so if there is none."""
    pid = endpoint.recorded_pid(endpoint.home_dir())
    if pid is None:
        click.echo("The controller is not running.")
        return
    os.kill(pid, signal.SIGTERM)
    _await_end(pid)
    click.echo(f"The controller (process {pid}) could not be asked, and was ended; running jobs go on.")


def _await_end(pid: int) -> None:
    give_up_at = time.monotonic() + STOP_TIMEOUT_S
    with working("Stopping the controller"):
        while endpoint.is_controller(pid):
            if time.monotonic() > give_up_at:
                raise Failure(
                    f"the controller (process {pid}) did not end within {STOP_TIMEOUT_S:.0f} s\n  try: kill -9 {pid}"
                )
            time.sleep(0.05)
