"""The clusters that the arguments of a command name: whole names, or patterns with `*`, `?` and `[a-z]`."""

from __future__ import annotations

from collections.abc import Sequence

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


def update_ssh_hosts(client: Client) -> None:
    """Have ssh know the clusters that exist now, if `perdure ssh` was used here before."""
    from perdure.cli.jobs.enter.ssh_files import SshFolder, SshUnavailable
    from perdure.sdk import clusters
    from perdure.sdk.connection.endpoint import home_dir

    folder = SshFolder(home_dir())
    if not folder.config.exists():
        return
    try:
        folder.list_clusters([one["name"] for one in clusters.clusters(client=client)])
    except SshUnavailable as error:
        warn(f"{error}\n  ssh does not know the clusters that have changed")


def is_pattern(name: str) -> bool:
    return bool(set(name) & set("*?["))
