"""`perdure controller backup|restore|accept-database`: copies of the database, and what they lack."""

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


@click.command(short_help="Write a backup, also while the controller runs.")
@click.argument("to", metavar="TO")
@click.option(
    "--keep", type=click.IntRange(min=0), default=0, metavar="N", help="Keep the newest N there; 0 keeps all."
)
@click.option("--without-keys", is_flag=True, help="Leave out secret.key, token and the TLS certificate.")
def backup(to: str, keep: int, without_keys: bool) -> None:
    """Write a backup of the controller on this computer to TO: a file, a folder, or a URL like s3://bucket/folder.

    It contains the database, logs, keys, and the uploads that unfinished jobs need, but not the contents of buckets.
    The controller may run meanwhile. An interrupted backup leaves the previous one as it was. To make backups
    regularly, and on a controller's own machine, set `backup` in config.yaml.
    """
    _require_local("backups of it are made there: set `backup` in config.yaml, and run: perdure controller upgrade")
    target = to if "://" in to else os.path.abspath(to) + ("/" if to.endswith("/") else "")
    options = ["--to", target, "--keep", str(keep), *(["--without-keys"] if without_keys else [])]
    raise SystemExit(run_controller("backup", *options))


@click.command(short_help="Make this home from a backup.")
@click.argument("source", metavar="BACKUP")
def restore(source: str) -> None:
    """Make PERDURE_HOME from a backup: a file, or a folder or URL, of which the newest backup is used.

    It refuses to replace a database. An interrupted restore can be run again. What happened after the backup is lost;
    its machines are named in the log and in `status`, and then terminated.
    """
    _require_local("restore it there")
    _require_stopped("restore a backup")
    raise SystemExit(run_controller("restore", "--source", source if "://" in source else os.path.abspath(source)))


def run_controller(command: str, *options: str) -> int:
    """Run a command of the controller's program on the home of this computer. Returns its exit code."""
    home = endpoint.home_dir()
    words = [sys.executable, "-P", "-m", "perdure.controller", command, "--home", str(home), *options]
    return subprocess.run(words, cwd=home if home.is_dir() else None, env=dict(os.environ), check=False).returncode


def _require_local(fix: str) -> None:
    target = discovery.find()
    if target is not None and target.home is None:
        raise Failure(f"the controller at {target.url} does not run on this computer\n  {fix}")


def _require_stopped(purpose: str) -> None:
    if (pid := discovery.recorded_pid(endpoint.home_dir())) is not None:
        raise Failure(f"the controller (process {pid}) runs\n  to {purpose}, stop it first: perdure controller stop")
