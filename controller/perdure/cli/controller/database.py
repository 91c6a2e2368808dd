"""`perdure controller accept-database`: for a database that is older than the home, or empty."""

from __future__ import annotations

import os
import subprocess
import sys

import click

from perdure.cli.errors import Failure
from perdure.cli.output.confirm import confirm
from perdure.sdk.connection import discovery, endpoint


@click.command(short_help="Accept a database that is older than its home, or empty.")
@click.option("-y", "--yes", is_flag=True, help="Skip confirmation.")
def accept_database(yes: bool) -> None:
    """Accept a database that lacks something of its home's past: an older copy, or an empty one.

    A controller refuses to start on such a database. This prints what is lost, and makes the database the home's own:
    no id is given twice, and machines that only the lost database knew are named and then terminated.
    """
    _require_stopped("accept the database")
    if run_controller("accept-database", "--show") == 0:
        confirm("Accept that this is lost for good?", yes=yes, default=False)
        raise SystemExit(run_controller("accept-database"))
    raise SystemExit(1)


def run_controller(command: str, *options: str) -> int:
    """Run a command of the controller's program on the home of this computer. Returns its exit code."""
    home = endpoint.home_dir()
    words = [sys.executable, "-P", "-m", "perdure.controller", command, "--home", str(home), *options]
    return subprocess.run(words, cwd=home if home.is_dir() else None, env=dict(os.environ), check=False).returncode


def _require_stopped(purpose: str) -> None:
    if (pid := discovery.recorded_pid(endpoint.home_dir())) is not None:
        raise Failure(f"the controller (process {pid}) runs\n  to {purpose}, stop it first: perdure controller stop")
