"""The clusters that the arguments of a command name: whole names, or patterns with `*`, `?` and `[a-z]`."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import click

from perdure.cli.errors import EXIT_WRONG_INPUT, Failure, warn
from perdure.sdk.connection.client import Client


def matching(names: Sequence[str], client: Client) -> list[str]:
    """The names of the clusters, patterns replaced by the clusters that match. Names are not checked."""
    from perdure.sdk import clusters

    chosen: list[str] = []
    for name in names:
        chosen += [one["name"] for one in clusters.clusters([name], client=client)] if is_pattern(name) else [name]
    return list(dict.fromkeys(chosen))


def require(names: Sequence[str], client: Client, *, everything: bool) -> list[str]:
    """The names of existing clusters: those given, or with `everything` all. Raises `Failure`."""
    from perdure.sdk import clusters

    if bool(names) == everything:
        raise Failure("specify which clusters\n  use names, or --all", EXIT_WRONG_INPUT)
    existing = [one["name"] for one in clusters.clusters(client=client)]
    if everything:
        return existing
    chosen = matching(names, client)
    if unknown := [name for name in chosen if name not in existing]:
        raise Failure(f"Cluster {unknown[0]!r} does not exist\n  see `perdure status`")
    if not chosen:
        raise Failure(f"no cluster has a name that matches {' or '.join(names)}\n  see `perdure status`")
    return chosen


def update_ssh_hosts(client: Client, *, is_launch: bool = False) -> None:
    """Have ssh know the clusters that exist now, if `perdure ssh` was used here before.

    The first launch makes the hosts known, as in SkyPilot, but only those of the user's own home: a controller in
    another PERDURE_HOME may be a trial that is deleted tomorrow.
    """
    from perdure.cli.jobs.enter.ssh_files import InvalidHost, SshFolder, SshUnavailable
    from perdure.sdk import clusters
    from perdure.sdk.connection.endpoint import DEFAULT_HOME, expand_home, home_dir

    home = home_dir()
    folder = SshFolder(home)
    is_first = is_launch and not folder.config.exists() and home == expand_home(DEFAULT_HOME) and _has_ssh()
    if not folder.config.exists() and not is_first:
        return
    try:
        folder.list_clusters([one["name"] for one in clusters.clusters(client=client)], is_first=is_first)
        if is_first:
            config = Path.home() / ".ssh" / "config"
            folder.include_in(config)
            click.echo(f"Added a line to {config}: ssh, scp and rsync now know your clusters.", err=True)
    except (InvalidHost, SshUnavailable) as error:
        warn(f"{error}\n  ssh does not know the clusters that have changed")


def _has_ssh() -> bool:
    return shutil.which("ssh") is not None


def is_pattern(name: str) -> bool:
    return bool(set(name) & set("*?["))
