"""Gives up the disks that a stopped cluster has kept, so that it can start on other machines."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Engine, Row

from perdure.controller.store.clusters import cluster_disks
from perdure.controller.store.clusters.cluster_disks import DisksLost
from perdure.controller.store.records import clusters
from perdure.controller.store.records.clusters import UP
from perdure.controller.submit.errors import RequestRejected


def require_unused(database: Engine, cluster: Row[Any]) -> None:
    """Raises RequestRejected while the machines that a cluster has kept run, or are still being stopped."""
    with database.begin() as conn:
        row = clusters.lock(conn, cluster.id)
        host = clusters.hosts(conn, [cluster.id]).get(cluster.id)
        is_held = host is not None and not host.finalized
        if row is not None and row.wanted == UP and is_held:
            text, fix = f"{cluster.name} has not stopped: its disks are in use", f"perdure stop {cluster.name}"
            raise RequestRejected(text, where="discard_disks", fix=fix, status=409)
        if is_held and cluster_disks.is_ending(conn, cluster.id, host_key=""):
            text, fix = f"the machines of {cluster.name} are still being stopped", "try again when it is STOPPED"
            raise RequestRejected(text, where="discard_disks", fix=fix, status=409)


def discard(conn: Connection, cluster_id: int) -> None:
    """Forget the machines that a cluster has kept: the sweep deletes them, with their disks. Nothing if it kept none.

    In the transaction that accepts the start on other machines: a start that is rejected deletes nothing.
    """
    cluster_disks.record(conn, cluster_id, DisksLost(), now=0.0)
