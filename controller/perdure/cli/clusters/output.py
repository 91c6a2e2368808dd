"""`-o json` of the commands of clusters: one document on stdout, made of the API's `Cluster` and `ClusterJob`.

| command | document |
|---|---|
| `launch`, `exec` | `{"cluster": Cluster, "job": ClusterJob or null, "warnings": [text]}` |
| `status`, `stop`, `start`, `down`, `autostop` | `[Cluster]`, as each is after the command |
| `queue`, `cancel` | `{name of the cluster: [ClusterJob]}`; of `cancel`, the jobs that it was about |
| `logs` | `{"job": ClusterJob, "log": text or null}` |

After an error, stdout is empty, and the exit code and stderr are those of the command without `-o json`.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

import click

from perdure.sdk.connection import api_types

if TYPE_CHECKING:
    from perdure.sdk.clusters import Launched
    from perdure.sdk.connection.client import Client

output_option = click.option(
    "-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True, help="Output format."
)
message_option = click.option(
    "-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Output format."
)


def print_json(document: Any) -> None:
    click.echo(json.dumps(document, indent=1))


def print_launched(client: Client, launched: Launched) -> None:
    """The document of a launch or an exec."""
    from perdure.sdk import clusters

    job = None if launched.number is None else clusters.find_job(launched.cluster_name, launched.number, client=client)
    cluster = by_id(client, launched.cluster_id)
    print_json({"cluster": cluster, "job": job, "warnings": list(launched.warnings)})


def print_clusters(client: Client, ids: Collection[int]) -> None:
    """The document of a command that has changed clusters, which may be down now."""
    print_json([by_id(client, cluster_id) for cluster_id in ids])


def by_id(client: Client, cluster_id: int) -> api_types.Cluster:
    return client.call(api_types.Cluster, "GET", f"/cluster-ids/{cluster_id}")


def names_of(clusters: Sequence[api_types.Cluster]) -> str:
    """The clusters, in a question."""
    return ", ".join(one["name"] for one in clusters)


def names_with_disks(clusters: Sequence[api_types.Cluster]) -> str:
    """`names_of`, with the disks that would be deleted."""
    count = sum(one["kept_disks"] for one in clusters)
    disks = f" on new machines, and delete {count} kept disk{'' if count == 1 else 's'}" if count else ""
    return names_of(clusters) + disks
