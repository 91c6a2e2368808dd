"""The queues of many clusters in one call."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypedDict

from perdure.sdk.connection import api_types, discovery
from perdure.sdk.connection.client import Client


class QueueOfCluster(TypedDict):
    """A cluster and its jobs, newest first."""

    cluster: api_types.Cluster
    jobs: list[api_types.ClusterJob]


class QueuesOfClusters(TypedDict):
    """The queues of the clusters that are not down, oldest cluster first."""

    now: str
    queues: list[QueueOfCluster]


def fetch(
    names: Iterable[str] | None = None, *, skip_finished: bool = False, client: Client | None = None
) -> QueuesOfClusters:
    """The queues of all clusters, or of those whose names match; patterns with `*`, `?` and `[a-z]` are allowed."""
    query = {"name": None if names is None else list(names), "skip_finished": int(skip_finished)}
    return (client or Client(discovery.ensure())).call(QueuesOfClusters, "GET", "/cluster-queues", query=query)
